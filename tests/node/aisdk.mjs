// A chat as the AI SDK has it, whose answers are durable streams: `@durable-streams/aisdk-transport`.
//
//   node aisdk.mjs <URL below which the streams of answers are> [<query to read with> <query to write with>]
//
// The application's server and its tabs run in this process; the model says what it is given.  Tabs are known by their
// number, from 0; all are of one chat.
//
//   {"do": "send", "headers"}    send these headers to the streams from the next request on
//   {"do": "ask", "text"}        a new tab sends a message; done when its answer has begun
//   {"do": "answer", "words"}    the model says these words; done when every tab shows all words so far
//   {"do": "open", "tabs"}       new tabs resume the answer; done when they show all words so far
//   {"do": "leave", "tabs"}      these tabs stop reading, as by a reload
//   {"do": "finish"}             the answer is complete; done when every tab knows
//   {"do": "tabs"}               what each tab shows

import { createServer } from "node:http"

import { createDurableChatTransport, toDurableStreamResponse } from "@durable-streams/aisdk-transport"
import { AbstractChat } from "ai"

import { Conditions, obey } from "./commands.mjs"

const [streams, ...queries] = process.argv.slice(2)
const [readWith, writeWith] = queries.map((query) => `?${query}`)
const conditions = new Conditions()
const until = (condition) => conditions.until(condition)

// -- the requests to the streams: the transport has no option for headers of reads, so that a page replaces `fetch`

let headers = {}
const fetch = globalThis.fetch
globalThis.fetch = (url, options) =>
  `${url}`.startsWith(streams) ? fetch(url, { ...options, headers: { ...options?.headers, ...headers } }) : fetch(url, options)

// -- the model

const said = []
let isFinished = false

async function* answer() {
  yield { type: "start", messageId: "answer" }
  yield { type: "text-start", id: "text" }
  for (let number = 0; ; number += 1) {
    await until(() => isFinished || number < said.length)
    if (number === said.length) break
    yield { type: "text-delta", id: "text", delta: said[number] }
  }
  yield { type: "text-end", id: "text" }
  yield { type: "finish" }
}

// -- the application's server: POST /api/chat, GET /api/chat/<id>/stream

const active = new Map()
const errors = []

const chatRequest = async (request) => {
  if (request.method === "GET") {
    const readUrl = active.get(request.url.split("/").at(-2))
    if (readUrl === undefined) return new Response(null, { status: 204 })
    return Response.json({ streamUrl: readUrl }, { headers: { Location: readUrl } })
  }
  const parts = []
  for await (const part of request) parts.push(part)
  const { id } = JSON.parse(Buffer.concat(parts))
  active.set(id, `${streams}/${id}${readWith ?? ""}`)
  const writeUrl = `${streams}/${id}${writeWith ?? ""}`
  return toDurableStreamResponse({ source: answer(), stream: { writeUrl, readUrl: active.get(id) } })
}

const server = createServer(async (request, response) => {
  try {
    const reply = await chatRequest(request)
    response.writeHead(reply.status, Object.fromEntries(reply.headers))
    response.end(Buffer.from(await reply.arrayBuffer()))
  } catch (error) {
    errors.push(error.message)
    response.writeHead(500).end()
    conditions.changed()
  }
})
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve))
const api = `http://127.0.0.1:${server.address().port}/api/chat`

// -- the tabs

class TabState {
  #status = "ready"
  #messages = []
  error = undefined

  get status() {
    return this.#status
  }
  set status(status) {
    this.#status = status
    conditions.changed()
  }
  get messages() {
    return this.#messages
  }
  set messages(messages) {
    this.#messages = messages
    conditions.changed()
  }
  pushMessage = (message) => (this.messages = [...this.messages, message])
  popMessage = () => (this.messages = this.messages.slice(0, -1))
  replaceMessage = (index, message) => (this.messages = this.messages.with(index, message))
  snapshot = (thing) => structuredClone(thing)
}

class Tab extends AbstractChat {
  isHere = true

  constructor() {
    const onError = (error) => {
      errors.push(error.message)
      conditions.changed()
    }
    super({ id: "chat", transport: createDurableChatTransport({ api }), state: new TabState(), onError })
  }

  get text() {
    const answers = this.messages.filter(({ role }) => role === "assistant")
    return answers.flatMap(({ parts }) => parts.map(({ text }) => text)).join("")
  }
}

const tabs = []
const present = () => tabs.filter(({ isHere }) => isHere)
const have = (wanted) => until(() => errors.length > 0 || present().every(({ text }) => text === wanted))
const open = () => {
  tabs.push(new Tab())
  return tabs.at(-1)
}

const commands = {
  async send({ headers: sent }) {
    headers = sent
  },
  async ask({ text }) {
    const tab = open()
    tab.sendMessage({ text })
    await until(() => errors.length > 0 || tab.status === "streaming")
    return { errors }
  },
  async answer({ words }) {
    said.push(...words)
    conditions.changed()
    await have(said.join(""))
    return { errors }
  },
  async open({ tabs: count }) {
    for (let number = 0; number < count; number += 1) open().resumeStream()
    await have(said.join(""))
    return { errors }
  },
  async leave({ tabs: numbers }) {
    for (const number of numbers) tabs[number].isHere = false
    await Promise.all(numbers.map((number) => tabs[number].stop()))
  },
  async finish() {
    isFinished = true
    conditions.changed()
    await until(() => errors.length > 0 || present().every(({ status }) => status === "ready"))
    return { errors }
  },
  async tabs() {
    return { tabs: tabs.map(({ text, status }) => ({ text, status })), errors }
  },
}

await obey(commands)
process.exit(0)
