// Runs the protocol's own conformance suite, once for each run that CONFORMANCE_RUNS lists, one after the other.
//
// The suite's command finds no tests, because vitest leaves node_modules out; imported from here it runs.  One process
// for several runs saves the start of vitest.  `tests/conformance/suite.py` says what a run has.

import { runConformanceTests } from "@durable-streams/server-conformance-tests"
import { beforeAll, beforeEach, describe } from "vitest"

const runs = JSON.parse(process.env.CONFORMANCE_RUNS)
const http1 = globalThis.fetch

async function http2Fetch() {
  // Node's own fetch, of a release that can be told to speak HTTP/2.
  const undici = await import("undici")
  const dispatcher = new undici.Agent({ allowH2: true })
  return (input, init) => undici.fetch(input, { dispatcher, ...init })
}
const http2 = runs.some((run) => run.http2) ? await http2Fetch() : undefined

function fullName(task) {
  const names = []
  for (let at = task; at; at = at.suite) {
    names.unshift(at.name)
  }
  // The first is that of the run.
  return names.slice(1).join(" ")
}

let failed = new Set()
runs.forEach((run, index) => {
  describe(String(index), () => {
    const pattern = new RegExp(run.names)
    let failedBefore

    beforeAll(() => {
      globalThis.fetch = run.http2 ? http2 : http1
      failedBefore = failed
      failed = new Set()
    })

    beforeEach(({ task, skip, onTestFailed }) => {
      const name = fullName(task)
      if (!pattern.test(name) && !(run.and_failed && failedBefore.has(name))) {
        skip()
      }
      onTestFailed(() => failed.add(name))
    })

    runConformanceTests({
      baseUrl: run.url,
      longPollTimeoutMs: Number(process.env.CONFORMANCE_LONG_POLL_MS),
    })
  })
})
