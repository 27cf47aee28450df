// Where the public port has a stream that the admin API names by its place at the origin: a route read backwards.

/** `{target, host}` for a stream, or null where no route leads to it; `host` is "" where any will do. */
export function publicAddress(stream, routes) {
  for (const route of routes) {
    if (stream.origin !== route.origin || !below(stream.path, route.base)) continue
    let path = stream.path.slice(route.base.length)
    if (route.strip_prefix) path = path === "/" && route.prefix ? route.prefix : route.prefix + path
    if (!below(path, route.prefix)) continue
    return { target: stream.query ? `${path}?${stream.query}` : path, host: route.host.startsWith("*") ? "" : route.host }
  }
  return null
}

const below = (path, prefix) => prefix === "" || path === prefix || path.startsWith(`${prefix}/`)

/** What a person typed as a path, as a request target: percent-encoded where it must be. */
export function asTarget(typed) {
  const path = typed.trim()
  const encoded = encodeURI(path.startsWith("/") ? path : `/${path}`).replace(/%25([0-9A-Fa-f]{2})/g, "%$1")
  return encoded.replaceAll("#", "%23")
}

/** The page's own link to the tail of a stream. */
export const tailLink = ({ target, host }) => `#/tail?${new URLSearchParams(host ? { path: target, host } : { path: target })}`
