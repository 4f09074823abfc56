-- wrk sends one prepared POST and reports as one JSON line. Arguments: body file, "refusals" or "", then header names
-- and values in turn. No `request` function is defined, and no `response` unless refusals are counted: wrk then prepares
-- the request once and never enters Lua per call. Its own count of errors does not tell 429 from other statuses.

refused = 0 -- global, because `done` runs in another Lua state than `response` and asks the thread for it
local threads = {}

function setup(thread)
  threads[#threads + 1] = thread
end

function init(args)
  local file = assert(io.open(args[1], "rb"))
  wrk.method = "POST"
  wrk.body = file:read("*a")
  file:close()
  for i = 3, #args - 1, 2 do
    wrk.headers[args[i]] = args[i + 1]
  end
  if args[2] == "refusals" then
    function response(status)
      if status == 429 then
        refused = refused + 1
      end
    end
  end
end

function done(summary, latency, requests)
  local e = summary.errors
  local known = 0
  for _, thread in ipairs(threads) do
    known = known + thread:get("refused")
  end
  io.write(string.format(
    '\nRESULT {"requests":%d,"refused":%d,"us":%d,"p50_us":%d,"p90_us":%d,"p99_us":%d,"failed":' ..
    '{"connect":%d,"read":%d,"write":%d,"status":%d,"timeout":%d}}\n',
    summary.requests - e.status, known, summary.duration,
    latency:percentile(50), latency:percentile(90), latency:percentile(99),
    e.connect, e.read, e.write, e.status - known, e.timeout))
end
