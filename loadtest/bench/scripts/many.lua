-- The same request to many streams in turn: `wrk ... -- 1000` asks for path0 to path999.
local requests, at = {}, 0

function init(args)
   for i = 0, tonumber(args[1]) - 1 do
      requests[i] = wrk.format("GET", wrk.path .. i)
   end
end

function request()
   at = (at + 7919) % (#requests + 1)
   return requests[at]
end
