// The reference client, driven line by line: a command as JSON on stdin, what comes of it as JSON on stdout.
//
//   {"do": "create" | "append" | "close", "url", "contentType", "body"?}
//   {"do": "produce", "url", "contentType", "producer", "epoch", "bodies"} by an idempotent producer
//   {"do": "begin", "url", "contentType", "producer", "wrapper"?}     an idempotent producer; "wrapper" exports `retrying`
//   {"do": "push", "bodies"}                                          append by it, and flush; its errors so far
//   {"do": "read", "url", "offset"?, "as": "json" | "text" | "bytes"} a catch-up read, whole
//   {"do": "token", "value"}                                          send this bearer token from the next request on
//   {"do": "cookie", "value"}                                         send this Cookie field, and no token, from then on
//   {"do": "follow", "url", "offset"?, "live", "as"}                  batches until the stream closes or "cancel" comes
//
// Bytes are base64 in both directions where `as` or the content type says bytes.

import { createInterface } from "node:readline"

import { DurableStream, IdempotentProducer, stream } from "@durable-streams/client"

const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`)
const isText = (type) => type.startsWith("text/") || type === "application/json"
const encode = (body, type) => (body === undefined || isText(type) ? body : Buffer.from(body, "base64"))
const handle = ({ url, contentType }) => new DurableStream({ url, contentType, headers: headers() })

let cancel = () => {}
let producer
let token
let cookie
// The client calls it before each request, so that a renewed token counts at once.
const headers = () => {
  if (cookie !== undefined) return { Cookie: cookie }
  return token === undefined ? undefined : { Authorization: () => `Bearer ${token}` }
}
let errors

const commands = {
  async create({ url, contentType, body }) {
    await DurableStream.create({ url, contentType, headers: headers(), body: encode(body, contentType) })
  },
  async append(command) {
    await handle(command).append(encode(command.body, command.contentType))
  },
  async close(command) {
    const { finalOffset } = await handle(command).close({ body: encode(command.body, command.contentType) })
    return { offset: finalOffset }
  },
  async produce(command) {
    const errors = []
    const producer = new IdempotentProducer(handle(command), command.producer, {
      epoch: command.epoch,
      maxBatchBytes: 64,
      onError: (error) => errors.push(error.message),
    })
    // An origin refuses a new epoch that does not begin with its first message, and the client sends several at once.
    const [first, ...rest] = command.bodies
    producer.append(encode(first, command.contentType))
    await producer.flush()
    for (const body of rest) producer.append(encode(body, command.contentType))
    await producer.flush()
    await producer.detach()
    return { errors }
  },
  async begin({ wrapper, ...command }) {
    errors = []
    const { retrying } = wrapper ? await import(`data:text/javascript,${encodeURIComponent(wrapper)}`) : {}
    producer = new IdempotentProducer(handle(command), command.producer, {
      fetch: retrying,
      onError: (error) => errors.push(error.message),
    })
  },
  async push({ bodies }) {
    for (const body of bodies) producer.append(body)
    await producer.flush()
    return { errors }
  },
  async token({ value }) {
    token = value
  },
  async cookie({ value }) {
    cookie = value
  },
  async read({ url, offset, as }) {
    const response = await stream({ url, offset, live: false, headers: headers() })
    const content =
      as === "json" ? await response.json() : as === "text" ? await response.text() : Buffer.from(await response.body())
    return {
      content: as === "bytes" ? content.toString("base64") : content,
      offset: response.offset,
      closed: response.streamClosed,
    }
  },
  async follow({ url, offset, live, as }) {
    const response = await stream({ url, offset, live, headers: headers() })
    const taken = new Promise((resolve) => {
      const take = (batch) => {
        const content =
          as === "json" ? batch.items : as === "text" ? batch.text : Buffer.from(batch.data).toString("base64")
        say({ batch: content, offset: batch.offset, upToDate: batch.upToDate, closed: batch.streamClosed })
        if (batch.streamClosed) resolve()
      }
      const subscribe = { json: "subscribeJson", text: "subscribeText", bytes: "subscribeBytes" }[as]
      const unsubscribe = response[subscribe](take)
      cancel = () => {
        unsubscribe()
        resolve()
      }
    })
    // `closed` comes when the last batch has been received, which is before a subscriber has been given it.
    await response.closed
    if (response.streamClosed) await taken
    return { offset: response.offset, closed: response.streamClosed }
  },
}

for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line)
  if (command.do === "cancel") {
    cancel()
    continue
  }
  commands[command.do](command).then(
    (result) => say({ done: command.do, ...result }),
    (error) => say({ failed: command.do, name: error.name, code: error.code, status: error.status, message: error.message })
  )
}
cancel()
