// Maps a stream's address at the origin, as the admin API names it, to its address on the public port.

/** `{target, host}` for a stream, or null if no route leads to it any more.  `host` is "" if the route has no host. */
export function publicAddress(stream, routes) {
  const route = routes.find(({ name }) => name === stream.route)
  if (!route || stream.origin !== route.origin || !below(stream.path, route.base)) return null
  let path = stream.path.slice(route.base.length)
  if (route.strip_prefix) path = path === "/" && route.prefix ? route.prefix : route.prefix + path
  if (!below(path, route.prefix)) return null
  return { target: stream.query ? `${path}?${stream.query}` : path, host: hostOf(route, routes) }
}

/** A host name of the route.  For a wildcard, it is a subdomain that no other route has. */
function hostOf({ host }, routes) {
  if (!host.startsWith("*.")) return host === "*" ? "" : host
  const taken = new Set(routes.map((route) => route.host.toLowerCase()))
  let label = "any"
  for (let n = 1; taken.has(`${label}${host.slice(1)}`.toLowerCase()); n += 1) label = `any-${n}`
  return label + host.slice(1)
}

const below = (path, prefix) => prefix === "" || path === prefix || path.startsWith(`${prefix}/`)

/** A typed path as a request target: percent-encoded where necessary. */
export function asTarget(typed) {
  const path = typed.trim()
  const encoded = encodeURI(path.startsWith("/") ? path : `/${path}`).replace(/%25([0-9A-Fa-f]{2})/g, "%$1")
  return encoded.replaceAll("#", "%23")
}

/** `{stream, basin}` for a typed path that names an S2 stream, as `/v1/streams/orders?s2-basin=shop` does; else null. */
export function asS2Stream(typed) {
  const [stream, query] = asTarget(typed).split("?")
  const basin = new URLSearchParams(query).get("s2-basin")
  return basin ? { stream, basin } : null
}

/** The link to the tail view of a stream. */
export const tailLink = ({ target, host }) => `#/tail?${new URLSearchParams(host ? { path: target, host } : { path: target })}`
