// A page's script: the reference client in a browser, reading through a gateway on another origin.
//
// `follow(url, live, as)` reads to the end of the stream; it gives every batch and what the client knows at the end.

import { stream } from "@durable-streams/client"

globalThis.follow = async (url, live, as) => {
  const batches = []
  const response = await stream({ url, offset: "-1", live })
  const taken = new Promise((resolve) => {
    const take = (batch) => {
      batches.push({ batch: as === "json" ? batch.items : batch.text, offset: batch.offset, upToDate: batch.upToDate })
      globalThis.received = batches.flatMap(({ batch }) => batch)
      if (batch.streamClosed) resolve()
    }
    if (as === "json") response.subscribeJson(take)
    else response.subscribeText(take)
  })
  await response.closed
  await taken
  return { batches, offset: response.offset, closed: response.streamClosed }
}

// What the browser lets a script of another origin see of a reply's head.
globalThis.look = async (url) => {
  const reply = await fetch(url)
  await reply.arrayBuffer()
  return { status: reply.status, headers: Object.fromEntries(reply.headers) }
}
