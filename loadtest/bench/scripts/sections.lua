-- The same read by many clients in turn: `wrk ... -- FILE` sends the header sections of a file, each followed by an empty
-- line.  With a second file, each client's URL has a query of its own: a line of that file.
local requests, at = {}, 0

local function content(name)
   local file = io.open(name, "rb")
   local all = file:read("*a")
   file:close()
   return all
end

function init(args)
   local next_query = args[2] and content(args[2]):gmatch("([^\n]+)\n")
   for section in content(args[1]):gmatch("(.-\r\n)\r\n") do
      local target = next_query and wrk.path .. "?" .. next_query() or wrk.path
      requests[#requests + 1] = "GET " .. target .. " HTTP/1.1\r\n" .. section .. "\r\n"
   end
end

function request()
   at = at % #requests + 1
   return requests[at]
end
