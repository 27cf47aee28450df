-- A small append.
wrk.method = "POST"
wrk.body = '{"kind":"bench","text":"' .. string.rep("x", 70) .. '"}'
wrk.headers["Content-Type"] = "application/json"
