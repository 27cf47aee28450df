// Node's own HTTP/2 client: so many live reads on one connection, a write beside them, and what each has seen of it.
//
//   node http2.mjs URL COUNT TEXT

import { connect } from "node:http2"

const [url, count, text] = process.argv.slice(2)
const { origin, pathname } = new URL(url)
const session = connect(origin)

const open = () =>
  new Promise((resolve, reject) => {
    const request = session.request({ ":path": `${pathname}?offset=-1&live=sse` })
    const reader = { seen: "", status: 0, over: null }
    reader.over = new Promise((end) => request.on("end", end))
    request.on("response", (headers) => (reader.status = headers[":status"]))
    request.on("data", (data) => {
      reader.seen += data
      if (reader.seen.includes("upToDate")) resolve(reader)
    })
    request.on("error", reject)
  })

const write = () =>
  new Promise((resolve, reject) => {
    const request = session.request({
      ":method": "POST", ":path": pathname, "content-type": "text/plain", "stream-closed": "true",
    })
    request.on("response", (headers) => resolve(headers[":status"]))
    request.on("error", reject)
    request.end(text)
  })

const readers = await Promise.all(Array.from({ length: Number(count) }, open))
const written = await write()
await Promise.all(readers.map((reader) => reader.over))
session.close()
const saw = readers.filter((reader) => reader.status === 200 && reader.seen.includes(text)).length
process.stdout.write(JSON.stringify({ written, saw, streams: readers.length }))
