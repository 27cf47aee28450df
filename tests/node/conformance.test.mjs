// Runs the protocol's own conformance suite against CONFORMANCE_URL.
//
// The suite's command finds no tests, because vitest leaves node_modules out; imported from here it runs.

import { runConformanceTests } from "@durable-streams/server-conformance-tests"

const baseUrl = process.env.CONFORMANCE_URL
if (!baseUrl) {
  throw new Error("CONFORMANCE_URL names the server to test")
}

runConformanceTests({
  baseUrl,
  longPollTimeoutMs: Number(process.env.CONFORMANCE_LONG_POLL_MS ?? 500),
})
