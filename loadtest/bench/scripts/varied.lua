-- A different trace id, span id and cookie on every request, as behind a tracing load balancer.
local form
local high, low = math.random(0, 0x7fffffff), 0

function init()
   form = "GET " .. wrk.path .. " HTTP/1.1\r\nHost: " .. wrk.host .. "\r\nUser-Agent: bench\r\nAccept: */*\r\n"
      .. "traceparent: 00-0af76519%08x84483191%08x-b7ad6b71%08x-01\r\nCookie: session=%08x%08x; theme=dark\r\n\r\n"
end

function request()
   low = (low + 1) % 0x7fffffff
   return form:format(high, low, low, low, high)
end
