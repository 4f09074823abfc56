-- wrk sends one prepared POST and reports as one JSON line. Arguments: body file, then header names and values in turn.
-- No `request` or `response` function is defined: wrk then prepares the request once and never enters Lua per call.

function init(args)
  local file = assert(io.open(args[1], "rb"))
  wrk.method = "POST"
  wrk.body = file:read("*a")
  file:close()
  for i = 2, #args - 1, 2 do
    wrk.headers[args[i]] = args[i + 1]
  end
end

function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '\nRESULT {"requests":%d,"us":%d,"p50_us":%d,"p90_us":%d,"p99_us":%d,"failed":' ..
    '{"connect":%d,"read":%d,"write":%d,"status":%d,"timeout":%d}}\n',
    summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(90), latency:percentile(99),
    e.connect, e.read, e.write, e.status, e.timeout))
end
