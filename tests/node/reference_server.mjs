// The reference server of the protocol, in memory, on a free port.  Prints `READY reference <url>`; SIGTERM ends it.

import { DurableStreamTestServer } from "@durable-streams/server"

const server = new DurableStreamTestServer({
  host: "127.0.0.1",
  port: Number(process.argv[2] ?? 0),
  longPollTimeout: Number(process.env.REFERENCE_LONG_POLL_MS ?? 500),
})
console.log(`READY reference ${await server.start()}`)
for (const signal of ["SIGTERM", "SIGINT"]) {
  process.on(signal, async () => {
    await server.stop()
    process.exit(0)
  })
}
