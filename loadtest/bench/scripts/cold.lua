-- A stream that was never asked for, each time.
local form
local number = 0

function init()
   form = "GET " .. wrk.path .. "%d?offset=-1 HTTP/1.1\r\nHost: " .. wrk.host
      .. "\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n"
end

function request()
   number = number + 1
   return form:format(number)
end
