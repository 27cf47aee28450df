-- The same read by many clients in turn: `wrk ... -- FILE` sends the header sections of a file, each followed by an empty line.
local requests, at = {}, 0

function init(args)
   local file = io.open(args[1], "rb")
   local all = file:read("*a")
   file:close()
   for section in all:gmatch("(.-\r\n)\r\n") do
      requests[#requests + 1] = "GET " .. wrk.path .. " HTTP/1.1\r\n" .. section .. "\r\n"
   end
end

function request()
   at = at % #requests + 1
   return requests[at]
end
