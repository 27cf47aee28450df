// The client of the admin port.  The token lives in this tab only; `whenLocked` sets the function that asks for it.

const KEY = "durable-gateway.token"

/** An unsuccessful answer: `status`, and the admin port's one line of text. */
export class Refused extends Error {
  constructor(status, text) {
    super(text)
    this.status = status
  }
}

let onLocked = () => {}

/** Call `ask` when the token is missing or wrong.  Its promise resolves once there is another token to try. */
export function whenLocked(ask) {
  onLocked = ask
}

export const setToken = (token) => sessionStorage.setItem(KEY, token)

async function request(path, { headers = {}, ...options } = {}) {
  const token = sessionStorage.getItem(KEY)
  const all = token ? { ...headers, Authorization: `Bearer ${token}` } : headers
  const reply = await fetch(path, { ...options, headers: all, cache: "no-store", credentials: "omit" })
  if (reply.status === 401 && !reply.headers.has("relayed-content-type")) {
    await reply.body?.cancel()
    await onLocked(token !== null)
    return request(path, { headers, ...options })
  }
  return reply
}

async function json(path, options) {
  const reply = await request(path, options)
  const text = await reply.text()
  let value
  try {
    value = text ? JSON.parse(text) : null
  } catch {
    value = { error: text.trim() }
  }
  if (!reply.ok) throw new Refused(reply.status, value?.error ?? `status ${reply.status}`)
  return value
}

const query = (values) => {
  const kept = Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined)
  return kept.length ? `?${new URLSearchParams(kept)}` : ""
}

const post = (path, value) =>
  json(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(value) })

export const about = () => json("/api/console")
export const overview = (signal) => json("/api/overview", { signal })
export const history = (signal) => json("/api/history", { signal })
export const origins = (signal) => json("/api/origins", { signal })
export const streams = (values, signal) => json(`/api/streams${query(values)}`, { signal })
export const stream = (id, signal) => json(`/api/streams/${encodeURIComponent(id)}`, { signal })
export const top = (by, limit, signal) => json(`/api/top${query({ by, limit })}`, { signal })
export const purge = (what) => post("/api/purge", what)
export const write = (what) => post("/api/console/write", what)

export async function metrics(signal) {
  const reply = await request("/metrics", { signal })
  if (!reply.ok) throw new Refused(reply.status, `status ${reply.status}`)
  return reply.text()
}

/** Read from the public port: the bare response, whose body may be endless.  `values`: host; for S2, basin and accept. */
export const read = (target, values, signal) => request(`/api/console/read${query({ target, ...values })}`, { signal })
