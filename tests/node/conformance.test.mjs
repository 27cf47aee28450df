// Runs the protocol's own conformance suite against CONFORMANCE_URL.
//
// The suite's command finds no tests, because vitest leaves node_modules out; imported from here it runs.

import { runConformanceTests } from "@durable-streams/server-conformance-tests"

const baseUrl = process.env.CONFORMANCE_URL
if (!baseUrl) {
  throw new Error("CONFORMANCE_URL names the server to test")
}

if (process.env.CONFORMANCE_HTTP2) {
  // Node's own fetch, of a release that can be told to speak HTTP/2.
  const undici = await import("undici")
  undici.setGlobalDispatcher(new undici.Agent({ allowH2: true }))
  globalThis.fetch = undici.fetch
}

runConformanceTests({
  baseUrl,
  longPollTimeoutMs: Number(process.env.CONFORMANCE_LONG_POLL_MS ?? 500),
})
