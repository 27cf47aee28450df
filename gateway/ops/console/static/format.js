// Formats numbers for people.  Every function takes null for "not known" and returns "–".

const NONE = "–"
const known = (value) => value !== null && value !== undefined && Number.isFinite(value)
const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 })

/** A count: `1,204`, and from a million on `3.42 M`. */
export function count(value) {
  if (!known(value)) return NONE
  if (Math.abs(value) >= 1e9) return `${(value / 1e9).toPrecision(3)} G`
  if (Math.abs(value) >= 1e6) return `${(value / 1e6).toPrecision(3)} M`
  return grouped.format(value)
}

/** A rate per second, with three significant digits. */
export function rate(value) {
  if (!known(value)) return NONE
  if (value === 0) return "0"
  if (value < 0.1) return "<0.1"
  return value < 10 ? value.toFixed(1) : count(Math.round(value))
}

/** Bytes in powers of 1024, as the configuration spells them. */
export function bytes(value) {
  if (!known(value)) return NONE
  const units = ["B", "KiB", "MiB", "GiB", "TiB"]
  let at = 0
  while (Math.abs(value) >= 1024 && at < units.length - 1) {
    value /= 1024
    at += 1
  }
  return `${at === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[at]}`
}

/** A share between 0 and 1 as a percentage; never rounded up to 100 %. */
export function share(value) {
  if (!known(value)) return NONE
  const percent = value * 100
  if (percent >= 99.95 && value < 1) return ">99.9 %"
  return `${percent >= 99.95 || percent < 0.05 ? Math.round(percent) : percent.toFixed(1)} %`
}

/** Seconds, from microseconds to days. */
export function span(seconds) {
  if (!known(seconds)) return NONE
  if (seconds < 0.0005) return seconds === 0 ? "0 s" : `${Math.max(1, Math.round(seconds * 1e6))} µs`
  if (seconds < 0.01) return `${(seconds * 1e3).toFixed(1)} ms`
  if (seconds < 1) return `${Math.round(seconds * 1e3)} ms`
  if (seconds < 10) return `${seconds.toFixed(1)} s`
  if (seconds < 120) return `${Math.round(seconds)} s`
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`
  return `${Math.round(seconds / 86400)} d`
}

/** A time of day with milliseconds. */
export function clock(date) {
  const two = (value) => String(value).padStart(2, "0")
  const part = [date.getHours(), date.getMinutes(), date.getSeconds()].map(two).join(":")
  return `${part}.${String(date.getMilliseconds()).padStart(3, "0")}`
}

/** A long offset cut at its beginning: offsets differ at their ends. */
export const offset = (token, most = 26) =>
  token === null || token === undefined ? NONE : token.length <= most ? token : `${token.slice(0, 5)}…${token.slice(6 - most)}`

/** `3 streams`, `1 stream`. */
export const many = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`
