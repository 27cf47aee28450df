// A Yjs server and the editors of its documents, in one process: `@durable-streams/y-durable-streams`.
//
//   node yjs.mjs <URL of a Durable Streams server> <compaction threshold, bytes>
//
// Says {"url"}, where the Yjs server is, and then obeys.  Editors are known by their number, from 0.
//
//   {"do": "token", "value"}                               editors send this bearer token from their next request on
//   {"do": "join", "url", "document", "editors", "live"}   new editors at `url`; done when all are in sync
//   {"do": "edit", "editors"?, "edits"}                    edits by all at once, or by these; done when all have them
//   {"do": "greet"}                                        every editor sets its awareness; done when all have all
//   {"do": "compact", "editor"}                            an edit after which the server makes a snapshot at the tail
//   {"do": "leave", "editors"?}                            these editors, or all, disconnect
//   {"do": "documents"}                                    what each editor has, and every edit that was made
//   {"do": "requests"}                                     the Yjs server's requests, and its live ones: open and peak

import { YjsProvider } from "@durable-streams/y-durable-streams"
import { YjsServer } from "@durable-streams/y-durable-streams/server"
import { Awareness } from "y-protocols/awareness"
import * as Y from "yjs"

import { Conditions, obey, say } from "./commands.mjs"

// The server logs its compactions to stdout, which is for the answers to commands.
console.log = () => {}

const [dsServerUrl, threshold] = process.argv.slice(2)
const conditions = new Conditions()
const until = (condition) => conditions.until(condition)

// -- the server: its compactions are counted, and what reaches it

const server = new YjsServer({ port: 0, dsServerUrl, compactionThreshold: Number(threshold) })
const compactions = { running: 0, made: 0 }
const compact = server.compactor.performCompaction.bind(server.compactor)
server.compactor.performCompaction = async (...document) => {
  compactions.running += 1
  try {
    const result = await compact(...document)
    compactions.made += 1
    return result
  } finally {
    compactions.running -= 1
    conditions.changed()
  }
}

const requests = []
const live = {}
say({ url: await server.start() })
server.server.prependListener("request", (request, response) => {
  const { pathname, searchParams } = new URL(request.url, "http://localhost")
  const stream = pathname + (searchParams.has("awareness") ? "?awareness" : "")
  const noted = { method: request.method, stream, offset: searchParams.get("offset"), live: searchParams.get("live") }
  requests.push(noted)
  response.on("close", () => (noted.status = response.statusCode))
  if (noted.live === null) return
  live[stream] ??= { open: 0, peak: 0 }
  live[stream].peak = Math.max(live[stream].peak, (live[stream].open += 1))
  response.on("close", () => (live[stream].open -= 1))
})

// -- the editors

const fetch = globalThis.fetch
globalThis.fetch = async (...request) => {
  const response = await fetch(...request)
  conditions.changed()
  return response
}

let token
const editors = []
const errors = []
const made = []
const present = () => editors.filter((editor) => !editor.hasLeft)
const written = (editor) => editor.doc.getArray("edits")
/// An editor receives the others' awareness from when it has subscribed.
const isInSync = ({ provider }) => provider.synced && provider.awarenessSubscription !== null

const join = ({ url, document, live }) => {
  const doc = new Y.Doc()
  const awareness = new Awareness(doc)
  // The provider calls a function for each request of a live read, but gives `fetch` its headers as they are.
  const bearer = () => `Bearer ${token}`
  bearer.toString = bearer
  const headers = token === undefined ? undefined : { Authorization: bearer }
  const where = { baseUrl: url, docId: document, liveMode: live, headers }
  const provider = new YjsProvider({ doc, awareness, connect: false, ...where })
  const editor = { doc, awareness, provider, name: `e${editors.length}`, edits: 0, hasLeft: false }
  editors.push(editor)
  doc.on("update", conditions.changed)
  awareness.on("change", conditions.changed)
  provider.on("synced", conditions.changed)
  provider.on("error", (error) => {
    errors.push(`${editor.name}: ${error.message}`)
    conditions.changed()
  })
  return editor
}

const edit = ({ doc, name }, what) =>
  doc.transact(() => {
    const text = doc.getText("text")
    // In the midst of what others write, so that order counts.
    text.insert((made.length * 7) % (text.length + 1), `[${what}]`)
    doc.getArray("edits").push([what])
    doc.getMap("last").set(name, what)
    made.push(what)
  })

const allHaveAll = () => present().every((editor) => written(editor).length === made.length)

const commands = {
  async token({ value }) {
    token = value
  },
  async join({ editors: count, ...where }) {
    const joining = Array.from({ length: count }, () => join(where))
    await Promise.all(joining.map(({ provider }) => provider.connect()))
    await until(() => errors.length > 0 || joining.every(isInSync))
    return { had: joining.map((editor) => written(editor).length), errors }
  },
  async edit({ editors: numbers, edits }) {
    const writing = numbers === undefined ? present() : numbers.map((number) => editors[number])
    for (let number = 0; number < edits; number += 1) {
      for (const editor of writing) edit(editor, `${editor.name}:${(editor.edits += 1)}`)
      // One request each, as by people who type: what is written in one go is sent as one.
      await Promise.all(writing.map(({ provider }) => provider.flush()))
    }
    await until(() => errors.length > 0 || allHaveAll())
    return { errors }
  },
  async greet() {
    for (const { awareness, name } of present()) awareness.setLocalStateField("name", name)
    const names = present().map(({ name }) => name)
    const hears = ({ awareness }) => {
      const heard = new Set([...awareness.getStates().values()].map(({ name }) => name))
      return names.every((name) => heard.has(name))
    }
    await until(() => present().every(hears))
  },
  async compact({ editor }) {
    await until(() => compactions.running === 0)
    const before = compactions.made
    edit(editors[editor], `${editors[editor].name}:${"c".repeat(Number(threshold))}:${before}`)
    await until(() => compactions.made > before && compactions.running === 0 && allHaveAll())
    return { compactions: compactions.made, errors }
  },
  async leave({ editors: numbers }) {
    const leaving = numbers === undefined ? present() : numbers.map((number) => editors[number])
    for (const editor of leaving) editor.hasLeft = true
    await Promise.all(leaving.map(({ provider }) => provider.disconnect()))
  },
  async documents() {
    const have = ({ doc }) => ({
      text: doc.getText("text").toString(),
      edits: doc.getArray("edits").toArray(),
      last: doc.getMap("last").toJSON(),
    })
    return { documents: present().map(have), made, errors, compactions: compactions.made }
  },
  async requests() {
    return { requests, live }
  },
}

await obey(commands)
process.exit(0)
