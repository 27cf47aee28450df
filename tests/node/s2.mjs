// `@s2-dev/streamstore` and `@s2-dev/streamstore-patterns` against a server of S2's API, one row for each call.
//
//   node s2.mjs URL TRANSPORT        TRANSPORT: s2s (HTTP/2 sessions) or fetch (HTTP/1.1 throughout)
//
// Commands, one JSON object a line:
//   {"do": "calls"}                  the SDK's own calls, and the names of the rows
//   {"do": "row", "name": …}         run one row
//   {"do": "append", "stream", "count"}   append so many numbered records in a session, each its own batch
//   {"do": "follow", "stream", "count"}   read a session from the beginning until it has given so many records
//   {"do": "messages", "stream", "count"} write messages with the patterns, and read them back

import assert from "node:assert/strict"
import { readFileSync } from "node:fs"
import { dirname, join } from "node:path"
import { createInterface } from "node:readline"
import { fileURLToPath } from "node:url"
import * as sdk from "@s2-dev/streamstore"
import * as patterns from "@s2-dev/streamstore-patterns"

const { DeserializingReadSession, FrameSizeError, SerializingAppendSession } = patterns.serialization
const { AppendInput, AppendRecord, BatchTransform, Producer, S2 } = sdk
const [url, transport] = process.argv.slice(2)
const encoder = new TextEncoder()
const toBytes = (message) => encoder.encode(message)

const s2 = new S2({
  accessToken: "token",
  endpoints: { account: url, basin: url },
  retry: { minBaseDelayMillis: 1, maxBaseDelayMillis: 20, maxAttempts: 10 },
  // It runs from when a batch is handed to a session.  Over fetch a session sends one batch at a time, so on a busy machine
  // the last of many would be sent again, and all that are on their way with it.
  requestTimeoutMillis: 20_000,
})
const BASIN = "basin-of-typescript"
let streams = 0

const streamOf = (name, options = {}) => s2.basin(BASIN).stream(name, { forceTransport: transport, ...options })
const fresh = (options) => streamOf(`a stream/${transport} ${(streams += 1)} 100 %`, options)
const input = (...bodies) => AppendInput.create(bodies.map((body) => AppendRecord.string({ body })))
const bodies = (batch) => batch.records.map((record) => record.body)

const take = async (session, count) => {
  const records = []
  if (count === 0) return records
  for await (const record of session) {
    records.push(record)
    if (records.length === count) break
  }
  return records
}

const rejects = async (promise, status, code) => {
  const error = await promise.then(() => assert.fail("no error"), (error) => error)
  assert.equal(error.status, status, String(error))
  if (code !== undefined) assert.equal(error.code, code)
  return error
}

// What sends no request of its own.
const LOCAL = new Set([
  "BatchTransform.flush", "CaughtUpBoundary.markDelivered", "CaughtUpTracker.caughtUp", "CaughtUpTracker.end",
  "CaughtUpTracker.isCaughtUp", "CaughtUpTracker.observeBatch", "CaughtUpTracker.reconnect", "EndpointTemplate.baseUrl",
  "S2Endpoints.accountBaseUrl", "S2Endpoints.basinBaseUrl", "S2Error.hasNoSideEffects",
  "S2.basin", "S2Basin.stream", "IndexedAppendAck.batchAppendAck", "IndexedAppendAck.seqNum", "SessionTransport.close",
  "SessionTransport.makeAppendSession", "SessionTransport.makeReadSession", "TransportAppendSession.close",
  "TransportAppendSession.effectSignalled", "TransportAppendSession.submit", "TransportReadSession.lastObservedTail",
])

// The files that the SDK's own index exports from, but for the messages of its API.
const exportedFiles = (folder) => {
  const index = readFileSync(join(folder, "index.d.ts"), "utf8")
  return [...new Set([...index.matchAll(/ from "\.\/([^"]+)\.js"/g)].map((found) => found[1]))]
    .filter((file) => !file.startsWith("generated/"))
}

// The public calls, as the SDK's own declarations have them.
const declared = () => {
  const folder = dirname(fileURLToPath(import.meta.resolve("@s2-dev/streamstore")))
  const calls = new Set()
  for (const file of exportedFiles(folder)) {
    let kind = ""
    for (const line of readFileSync(join(folder, `${file}.d.ts`), "utf8").split("\n")) {
      kind = line.match(/^export (?:declare (?:abstract )?class|interface) (\w+)/)?.[1] ?? kind
      const name = line.match(/^    (?!constructor|private|static|protected)(\w+)[<(]/)?.[1]
      if (name !== undefined) calls.add(`${kind}.${name}`)
    }
  }
  // The patterns' own calls: those of what is a stream to read or to write messages.
  for (const [kind, { prototype }] of Object.entries(patterns.serialization)) {
    if (!(prototype instanceof WritableStream || prototype instanceof ReadableStream)) continue
    calls.add(kind)
    for (const name of Object.getOwnPropertyNames(prototype)) calls.add(`${kind}.${name}`)
  }
  return [...calls].filter((call) => !LOCAL.has(call) && !call.endsWith(".constructor"))
}

const rows = {
  "S2Stream.checkTail": async (stream) => {
    assert.equal((await stream.checkTail()).tail.seqNum, 0)
    const ack = await stream.append(input("a"))
    assert.deepEqual((await stream.checkTail()).tail, ack.tail)
  },
  "S2Stream.append": async (stream) => {
    const record = AppendRecord.string({ body: "é\u2028\n", headers: [["n", "v"], ["x", ""]] })
    const ack = await stream.append(AppendInput.create([record, AppendRecord.string({ body: "" })]))
    assert.deepEqual([ack.start.seqNum, ack.end.seqNum, ack.tail.seqNum], [0, 2, 2])
    const { records } = await stream.read({ start: { from: { seqNum: 0 } } })
    assert.deepEqual([records[0].body, records[0].headers, records[1].body], [record.body, record.headers, ""])
  },
  "S2Stream.append: bytes": async (stream) => {
    const body = Uint8Array.from({ length: 5_000 }, (_, index) => index % 256)
    const name = Uint8Array.of(255)
    await stream.append(AppendInput.create([AppendRecord.bytes({ body, headers: [[name, Uint8Array.of(0)]] })]))
    const { records } = await stream.read({ start: { from: { seqNum: 0 } } }, { as: "bytes" })
    assert.deepEqual([...records[0].body], [...body])
    assert.deepEqual([...records[0].headers[0][0]], [255])
  },
  "S2Stream.append: matchSeqNum": async (stream) => {
    const first = AppendInput.create([AppendRecord.string({ body: "a" })], { matchSeqNum: 0 })
    await stream.append(first)
    const error = await rejects(stream.append(first), 412)
    assert.ok(error instanceof sdk.SeqNumMismatchError)
    assert.equal(error.expectedSeqNum, 1)
  },
  "S2Stream.append: fencingToken": async (stream) => {
    await stream.append(AppendInput.create([AppendRecord.fence("mine")]))
    const fenced = (fencingToken) => AppendInput.create([AppendRecord.string({ body: "a" })], { fencingToken })
    await stream.append(fenced("mine"))
    const error = await rejects(stream.append(fenced("theirs")), 412)
    assert.ok(error instanceof sdk.FencingTokenMismatchError)
    assert.equal(error.expectedFencingToken, "mine")
  },
  "S2Stream.append: trim": async (stream) => {
    await stream.append(input("a", "b", "c"))
    await stream.append(AppendInput.create([AppendRecord.trim(2)]))
    const batch = await stream.read({ start: { from: { seqNum: 0 } }, ignoreCommandRecords: true })
    assert.deepEqual(batch.records.map((record) => record.seqNum), [2])
  },
  "S2Stream.append: timestamps": async (stream) => {
    const streamConfig = { timestamping: { mode: "client-require", uncapped: true } }
    const record = AppendRecord.string({ body: "a", timestamp: 4_000_000_000_000 })
    const ack = await stream.append(AppendInput.create([record], { streamConfig }))
    assert.equal(ack.start.timestamp.getTime(), 4_000_000_000_000)
    await rejects(stream.append(input("b")), 422, "invalid")
  },
  "S2Stream.append: no stream": async () => {
    await s2.basins.ensure({ basin: "basin-that-creates-nothing" })
    await rejects(s2.basin("basin-that-creates-nothing").stream("s").append(input("")), 404, "stream_not_found")
  },
  "S2Stream.read: seqNum": async (stream) => {
    await stream.append(input("a", "b", "c"))
    const read = (stop) => stream.read({ start: { from: { seqNum: 0 } }, stop })
    assert.deepEqual(bodies(await read()), ["a", "b", "c"])
    assert.deepEqual(bodies(await read({ limits: { count: 2 } })), ["a", "b"])
    assert.deepEqual(bodies(await read({ limits: { bytes: 9 } })), ["a"])
  },
  "S2Stream.read: timestamp": async (stream) => {
    const records = [10, 20, 30].map((at) => AppendRecord.string({ body: `${at}`, timestamp: at }))
    await stream.append(AppendInput.create(records))
    const read = (timestamp, untilTimestamp) => stream.read({ start: { from: { timestamp } }, stop: { untilTimestamp } })
    assert.deepEqual(bodies(await read(11)), ["20", "30"])
    assert.deepEqual(bodies(await read(10, 30)), ["10", "20"])
  },
  "S2Stream.read: tailOffset": async (stream) => {
    await stream.append(input("a", "b", "c"))
    assert.deepEqual(bodies(await stream.read({ start: { from: { tailOffset: 2 } } })), ["b", "c"])
  },
  "S2Stream.read: beyond the tail": async (stream) => {
    await stream.append(input("a"))
    for (const from of [{ seqNum: 9 }, { seqNum: 1 }, { tailOffset: 0 }]) {
      const error = await rejects(stream.read({ start: { from } }), 416)
      assert.ok(error instanceof sdk.RangeNotSatisfiableError)
      assert.equal(error.tail.seqNum, 1)
    }
    const clamped = { start: { from: { seqNum: 9 }, clamp: true }, stop: { waitSecs: 1 } }
    assert.deepEqual(bodies(await stream.read(clamped)), [])
  },
  "S2Stream.read: wait": async (stream) => {
    await stream.append(input("a"))
    const waiting = stream.read({ start: { from: { seqNum: 1 } }, stop: { waitSecs: 20 } })
    await stream.append(input("b"))
    assert.deepEqual(bodies(await waiting), ["b"])
  },
  "S2Stream.readSession": async (stream) => {
    await stream.append(input("a", "b"))
    const session = await stream.readSession({ start: { from: { seqNum: 0 } } })
    const seen = []
    for await (const record of session) {
      seen.push(record.body)
      if (seen.length === 4) break
      if (seen.length >= 2) await stream.append(input(`live ${seen.length}`))
    }
    assert.deepEqual(seen, ["a", "b", "live 2", "live 3"])
  },
  "S2Stream.readSession: bytes": async (stream) => {
    await stream.append(AppendInput.create([AppendRecord.bytes({ body: Uint8Array.of(255, 0) })]))
    const session = await stream.readSession({ start: { from: { seqNum: 0 } } }, { as: "bytes" })
    assert.deepEqual([...(await take(session, 1))[0].body], [255, 0])
  },
  "S2Stream.readSession: limits": async (stream) => {
    for (let start = 0; start < 3_000; start += 1_000) {
      await stream.append(input(...Array.from({ length: 1_000 }, (_, index) => `${start + index}`)))
    }
    const stop = { limits: { count: 2_100 } }
    const session = await stream.readSession({ start: { from: { seqNum: 5 } }, stop })
    const records = await take(session, Infinity)
    assert.deepEqual(records.map((record) => record.seqNum), Array.from({ length: 2_100 }, (_, index) => index + 5))
  },
  "S2Stream.readSession: wait": async (stream) => {
    await stream.append(input("a"))
    const stop = { limits: { count: 2 }, waitSecs: 20 }
    const session = await stream.readSession({ start: { from: { seqNum: 0 } }, stop })
    const reading = take(session, Infinity)
    await stream.append(input("b"))
    assert.deepEqual((await reading).map((record) => record.body), ["a", "b"])
  },
  "S2Stream.readSession: beyond the tail": async (stream) => {
    await stream.append(input("a"))
    const far = { from: { seqNum: 9 } }
    await rejects(stream.readSession({ start: far }).then((session) => take(session, 1)), 416)
    const session = await stream.readSession({ start: { ...far, clamp: true } })
    const reading = take(session, 1)
    await session.caughtUp()
    await stream.append(input("b"))
    assert.deepEqual((await reading).map((record) => record.seqNum), [1])
  },
  "S2Stream.readSession: command records": async (stream) => {
    await stream.append(AppendInput.create([AppendRecord.fence("t"), AppendRecord.string({ body: "a" })]))
    const start = { from: { seqNum: 0 } }
    assert.equal((await take(await stream.readSession({ start }), 2)).length, 2)
    const session = await stream.readSession({ start, ignoreCommandRecords: true })
    assert.deepEqual((await take(session, 1)).map((record) => record.seqNum), [1])
  },
  "ReadSession.caughtUp": async (stream) => {
    await stream.append(input("a", "b"))
    const session = await stream.readSession({ start: { from: { seqNum: 0 } } })
    const reading = take(session, 3)
    assert.equal((await session.caughtUp()).seqNum, 2)
    assert.ok(session.isCaughtUp())
    assert.equal(session.lastObservedTail().seqNum, 2)
    assert.equal(session.nextReadPosition().seqNum, 2)
    await stream.append(input("c"))
    assert.equal((await reading).length, 3)
  },
  "S2Stream.appendSession": async (stream) => {
    const session = await stream.appendSession()
    const tickets = []
    for (let number = 0; number < 200; number += 1) tickets.push(await session.submit(input(`${number}`, "x")))
    const acks = await Promise.all(tickets.map((ticket) => ticket.ack()))
    assert.deepEqual(acks.map((ack) => ack.start.seqNum), acks.map((_, index) => index * 2))
    assert.equal(session.lastAckedPosition().end.seqNum, 400)
    await session.close()
    assert.equal((await stream.checkTail()).tail.seqNum, 400)
  },
  "S2Stream.appendSession: large batches": async (stream) => {
    const session = await stream.appendSession({ maxInflightBatches: 4 })
    const body = "x".repeat(500_000)
    const tickets = []
    for (let number = 0; number < 16; number += 1) tickets.push(await session.submit(input(body)))
    assert.equal((await tickets.at(-1).ack()).end.seqNum, 16)
    await session.close()
  },
  "S2Stream.appendSession: as streams": async (stream) => {
    const session = await stream.appendSession()
    const acks = []
    const reading = (async () => {
      for await (const ack of session.acks()) acks.push(ack.end.seqNum)
    })()
    const writer = session.writable.getWriter()
    for (let number = 0; number < 5; number += 1) await writer.write(input(`${number}`))
    await writer.close()
    await reading
    assert.deepEqual(acks, [1, 2, 3, 4, 5])
  },
  "S2Stream.appendSession: the first failure ends it": async (stream) => {
    const session = await stream.appendSession()
    const good = await session.submit(input("a"))
    const bad = await session.submit(AppendInput.create([AppendRecord.string({ body: "b" })], { matchSeqNum: 7 }))
    const failed = bad.ack().then(() => assert.fail("no error"), (error) => error)
    assert.equal((await good.ack()).end.seqNum, 1)
    assert.equal((await failed).status, 412)
    assert.equal(session.failureCause().status, 412)
    await session.close().catch(() => {})
    assert.deepEqual(bodies(await stream.read({ start: { from: { seqNum: 0 } } })), ["a"])
  },
  "BatchSubmitTicket.ack": async (stream) => {
    const session = await stream.appendSession()
    const ticket = await session.submit(input("a", "b"))
    assert.deepEqual([ticket.numRecords, (await ticket.ack()).end.seqNum], [2, 2])
    await session.close()
  },
  "Producer.submit": async (stream) => {
    const batching = new BatchTransform({ lingerDurationMillis: 1, maxBatchRecords: 7 })
    const producer = new Producer(batching, await stream.appendSession())
    const tickets = []
    for (let number = 0; number < 100; number += 1) {
      tickets.push(await producer.submit(AppendRecord.string({ body: `${number}` })))
    }
    const acks = await Promise.all(tickets.map((ticket) => ticket.ack()))
    assert.deepEqual(acks.map((ack) => ack.seqNum()), acks.map((_, index) => index))
    await producer.close()
    assert.equal((await stream.read({ start: { from: { seqNum: 0 } } })).records.length, 100)
  },
  "Producer.flush": async (stream) => {
    const producer = new Producer(new BatchTransform({ lingerDurationMillis: 60_000 }), await stream.appendSession())
    const ticket = await producer.submit(AppendRecord.string({ body: "a" }))
    await producer.flush()
    assert.equal((await ticket.ack()).batchAppendAck().end.seqNum, 1)
    await producer.close()
  },
  "Producer: matchSeqNum and fencingToken": async (stream) => {
    await stream.append(AppendInput.create([AppendRecord.fence("mine")]))
    const batching = new BatchTransform({ lingerDurationMillis: 1, maxBatchRecords: 2, matchSeqNum: 1, fencingToken: "mine" })
    const producer = new Producer(batching, await stream.appendSession())
    const tickets = []
    for (let number = 0; number < 10; number += 1) tickets.push(await producer.submit(AppendRecord.string({ body: "x" })))
    assert.equal((await (await tickets.at(-1)).ack()).seqNum(), 10)
    await producer.close()
  },
  "S2Stream.withEncryptionKey": async (stream) => {
    const keyed = stream.withEncryptionKey(new Uint8Array(32))
    await keyed.append(input("a"))
    assert.deepEqual(bodies(await keyed.read({ start: { from: { seqNum: 0 } } })), ["a"])
    await keyed.close()
  },
  "S2Stream.close": async (stream) => {
    await stream.append(input("a"))
    await stream.close()
    await assert.rejects(stream.checkTail())
  },
  "SerializingAppendSession": async (stream) => {
    const session = await stream.appendSession()
    const writer = new SerializingAppendSession(session, toBytes, { chunkSize: 1_000, matchSeqNum: 0 }).getWriter()
    for (const message of ["short", "x".repeat(5_500)]) await writer.write(message)
    await writer.close()
    // A frame of six records after one of one.
    assert.equal((await stream.checkTail()).tail.seqNum, 7)
  },
  "SerializingAppendSession.submit": async (stream) => {
    const writing = new SerializingAppendSession(await stream.appendSession(), toBytes, { chunkSize: 10, matchSeqNum: 0 })
    assert.deepEqual(await writing.submit("x".repeat(25)), { start: 0, end: 3 })
    await stream.append(input("of another writer"))
    await rejects(writing.submit("late"), 412)
  },
  "SerializingAppendSession.toRecords": async (stream) => {
    const session = await stream.appendSession()
    const writing = new SerializingAppendSession(session, toBytes, { maxFrameBytes: 10 })
    await assert.rejects(writing.submit("x".repeat(11)), FrameSizeError)
    await writing.submit("x".repeat(10))
    await session.close()
  },
  "SerializingAppendSession.nextDedupeSeq": async (stream) => {
    const session = await stream.appendSession()
    await new SerializingAppendSession(session, toBytes, { chunkSize: 1, dedupeSeq: 5 }).submit("ab")
    await session.close()
    const { records } = await stream.read({ start: { from: { seqNum: 0 } } }, { as: "bytes" })
    const seqs = records.map((record) => patterns.serialization.extractDedupeSeq(record.headers)[1])
    assert.deepEqual(seqs, [5, 6])
  },
  "DeserializingReadSession": async (stream) => {
    const written = ["a", "b".repeat(2_000_000), "c"]
    const appends = await stream.appendSession()
    const writing = new SerializingAppendSession(appends, toBytes, { dedupeSeq: 0 })
    for (const message of written) await writing.submit(message)
    // What is appended a second time, as after an answer that was lost, is read once.
    const { records } = await stream.read({ start: { from: { seqNum: 0 } }, stop: { limits: { count: 1 } } }, { as: "bytes" })
    await stream.append(AppendInput.create(records.map(({ body, headers }) => AppendRecord.bytes({ body, headers }))))
    await writing.submit("d")
    await appends.close()
    const { tail } = await stream.checkTail()
    const stop = { limits: { count: tail.seqNum } }
    const session = await stream.readSession({ start: { from: { seqNum: 0 } }, stop }, { as: "bytes" })
    const read = []
    for await (const message of new DeserializingReadSession(session, (payload) => new TextDecoder().decode(payload))) {
      read.push(message)
    }
    assert.deepEqual(read, [...written, "d"])
  },
  "S2Basins": async () => {
    const { basins } = s2
    const basin = `another-${transport}`
    assert.equal((await basins.create({ basin, config: { createStreamOnRead: true } })).name, basin)
    assert.equal((await basins.getConfig({ basin })).createStreamOnRead, true)
    assert.equal((await basins.ensure({ basin })).result, "updated")
    assert.equal((await basins.reconfigure({ basin, createStreamOnAppend: true })).createStreamOnAppend, true)
    assert.ok((await basins.list({ prefix: "another" })).basins.some((one) => one.name === basin))
    const all = []
    for await (const one of basins.listAll()) all.push(one.name)
    assert.ok(all.includes(BASIN) && all.includes(basin))
    await basins.delete({ basin })
    await rejects(basins.getConfig({ basin }), 404, "basin_not_found")
  },
  "S2Streams": async () => {
    const { streams } = s2.basin(BASIN)
    const stream = `managed/${transport}`
    assert.equal((await streams.create({ stream })).name, stream)
    assert.deepEqual((await streams.getConfig({ stream })).retentionPolicy, { ageSecs: 7 * 86_400 })
    const changed = await streams.reconfigure({ stream, retentionPolicy: { infinite: {} } })
    assert.deepEqual(changed.retentionPolicy, { infinite: {} })
    assert.equal((await streams.ensure({ stream })).result, "updated")
    assert.deepEqual((await streams.list({ prefix: stream })).streams.map((one) => one.name), [stream])
    const all = []
    for await (const one of streams.listAll({ prefix: "managed/" })) all.push(one.name)
    assert.ok(all.includes(stream))
    await streams.delete({ stream })
    await rejects(streams.getConfig({ stream }), 404, "stream_not_found")
  },
  "S2AccessTokens": async () => {
    const id = `token-${transport}`
    const { accessTokens } = s2
    assert.ok((await accessTokens.issue({ id, scope: { ops: ["read"] } })).accessToken)
    assert.ok((await accessTokens.list({ prefix: id })).accessTokens.some((one) => one.id === id))
    for await (const one of accessTokens.listAll({ prefix: id })) assert.equal(one.id, id)
    await accessTokens.revoke({ id })
  },
  "S2Locations": async () => {
    const [location] = await s2.locations.list()
    assert.equal((await s2.locations.getDefault()).name, location.name)
    assert.equal((await s2.locations.setDefault({ location: location.name })).name, location.name)
  },
  "S2Metrics": async () => {
    const time = { start: 0, end: 3_600_000 }
    assert.deepEqual((await s2.metrics.account({ set: "active-basins", ...time })).values, [])
    assert.deepEqual((await s2.metrics.basin({ basin: BASIN, set: "storage", ...time })).values, [])
    assert.deepEqual((await s2.metrics.stream({ basin: BASIN, stream: "s", set: "storage", ...time })).values, [])
  },
}

// Calls that rows of other names make.
const WITHIN = {
  "AppendSession.acks": "S2Stream.appendSession: as streams",
  "AppendSession.close": "S2Stream.appendSession",
  "AppendSession.failureCause": "S2Stream.appendSession: the first failure ends it",
  "AppendSession.lastAckedPosition": "S2Stream.appendSession",
  "AppendSession.submit": "S2Stream.appendSession",
  "Producer.close": "Producer.submit",
  "ReadSession.isCaughtUp": "ReadSession.caughtUp",
  "ReadSession.lastObservedTail": "ReadSession.caughtUp",
  "ReadSession.nextReadPosition": "ReadSession.caughtUp",
  "RecordSubmitTicket.ack": "Producer.submit",
}

// A row is named for a call, for a way to make it, or for a class all of whose calls it makes.
const named = new Set(Object.keys(rows).flatMap((name) => [name, name.split(":")[0]]))
const isCovered = (call) => named.has(WITHIN[call] ?? call) || named.has(call.split(".")[0])

const commands = {
  calls: async () => {
    const calls = declared()
    return { missing: calls.filter((call) => !isCovered(call)), rows: Object.keys(rows), calls: calls.length }
  },
  row: async ({ name }) => {
    const stream = fresh()
    await rows[name](stream)
    await stream.close()
    return {}
  },
  append: async ({ stream: name, count }) => {
    const stream = streamOf(name)
    const session = await stream.appendSession()
    const bodies = Array.from({ length: count }, (_, number) => `${number}`)
    const tickets = []
    // Over fetch each batch is a request that waits for the one before.
    for (let begin = 0; begin < count; begin += 10) tickets.push(await session.submit(input(...bodies.slice(begin, begin + 10))))
    await Promise.all(tickets.map((ticket) => ticket.ack()))
    await session.close()
    await stream.close()
    return {}
  },
  follow: async ({ stream: name, count }) => {
    const stream = streamOf(name)
    const records = await take(await stream.readSession({ start: { from: { seqNum: 0 } } }), count)
    await stream.close()
    return { seqNums: records.map((record) => record.seqNum), bodies: records.map((record) => record.body) }
  },
  messages: async ({ stream: name, count }) => {
    const stream = streamOf(name)
    const writer = new SerializingAppendSession(await stream.appendSession(), toBytes, { chunkSize: 50, dedupeSeq: 0 }).getWriter()
    for (let number = 0; number < count; number += 1) await writer.write(`${number}:`.padEnd(40 + number, "x"))
    await writer.close()
    const session = await stream.readSession({ start: { from: { seqNum: 0 } } }, { as: "bytes" })
    const decoder = new TextDecoder()
    const messages = []
    // Not by `for await`: leaving the loop early makes the patterns cancel a stream that they hold locked.
    const reader = new DeserializingReadSession(session, (payload) => decoder.decode(payload), { enableDedupe: true }).getReader()
    while (messages.length < count) messages.push((await reader.read()).value)
    const { tail } = await stream.checkTail()
    await stream.close()
    return { messages, tail: tail.seqNum }
  },
}

await s2.basins.ensure({ basin: BASIN, config: { createStreamOnAppend: true, createStreamOnRead: true } })
for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line)
  try {
    const said = await commands[command.do](command)
    process.stdout.write(`${JSON.stringify({ done: command.do, ...said })}\n`)
  } catch (error) {
    const said = { failed: command.do, message: error.stack ?? String(error), status: error.status }
    process.stdout.write(`${JSON.stringify(said)}\n`)
  }
}
process.exit(0)
