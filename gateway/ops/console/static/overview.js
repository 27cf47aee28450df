// The overview: what clients ask, and how little of it the origin sees.

import * as api from "./api.js"
import { Chart } from "./charts.js"
import { h, say } from "./dom.js"
import { buckets, quantile } from "./exposition.js"
import * as say_ from "./format.js"
import { between, History, OUTCOMES, sinceStart, total } from "./rates.js"
import { table } from "./streams.js"

export const DELAY = "gateway_delivery_delay_seconds"
/** Finding the busiest goes through all streams, so it is not done at every look. */
const LOOKS_PER_TOP = 5
const LABELS = { stale_if_error: "stale if error" }

/** What is remembered while other views are open. */
const memory = { history: new History(), last: null, buckets: null }

/** One look at the gateway, remembered. */
export async function look(signal) {
  const [overview, text] = await Promise.all([api.overview(signal), api.metrics(signal)])
  const found = buckets(text, DELAY)
  const point = between(memory.last, overview)
  if (point) {
    point.subscribers = overview.subscribers
    point.delay = found && { p50: quantile(0.5, found, memory.buckets), p99: quantile(0.99, found, memory.buckets) }
    memory.history.add(point)
  }
  memory.buckets = found
  memory.last = overview
  return { overview, point, found }
}

function figure(label, hint) {
  const value = h("strong", {}, "–")
  const more = h("small", {})
  return { element: h("div", { class: "figure", title: hint }, h("span", {}, label), value, more), value, more }
}

function card(title, hint, chart, wide) {
  return h("section", { class: wide ? "card wide" : "card" }, h("h2", { title: hint }, title), chart.element)
}

/** The view: an element, and what to do at every look. */
export function overviewView() {
  const charts = {
    outcomes: new Chart({
      label: "Requests a second by outcome",
      isStacked: true,
      format: say_.rate,
      series: OUTCOMES.map((one) => ({ label: LABELS[one] ?? one, colour: `--o-${one.replaceAll("_", "-")}` })),
    }),
    origin: new Chart({
      label: "Client requests and origin requests a second",
      format: say_.rate,
      series: [{ label: "clients", colour: "--clients", isFilled: true }, { label: "origin", colour: "--origin" }],
    }),
    ratios: new Chart({
      label: "Hit and collapse ratio",
      format: say_.share,
      most: 1,
      series: [{ label: "hit", colour: "--o-hit" }, { label: "collapsed", colour: "--o-collapsed" }],
    }),
    subscribers: new Chart({
      label: "Live subscribers",
      format: say_.count,
      isStacked: true,
      series: [{ label: "SSE", colour: "--o-followed" }, { label: "long-poll", colour: "--o-collapsed" }],
    }),
    delay: new Chart({
      label: "Delivery delay",
      format: say_.span,
      series: [{ label: "median", colour: "--clients" }, { label: "p99", colour: "--o-miss", isDashed: true }],
    }),
    bytes: new Chart({
      label: "Bytes a second to clients and from the origin",
      isBytes: true,
      format: (value) => say_.bytes(value),
      series: [{ label: "to clients", colour: "--clients", isFilled: true }, { label: "from the origin", colour: "--origin" }],
    }),
  }

  const clients = figure("client requests/s", "Requests that have ended in the last second; live reads count when they end.")
  const origin = figure("origin requests/s", "Requests sent to origins, tail probes and retries included.")
  const subscribers = figure("live readers", "Clients that wait on a long-poll or hold an SSE connection.")
  const followed = figure("streams followed", "Each costs the origin one live request, however many read it.")
  const beam = h("div", { class: "beam", "aria-hidden": "true" }, h("i"), h("i"))
  const offload = h("p", { class: "offload" })
  const hero = h(
    "section",
    { class: "hero", "aria-label": "Clients and origin" },
    h("div", { class: "hero-side" }, clients.element, subscribers.element),
    h("div", { class: "hero-middle" }, beam, offload),
    h("div", { class: "hero-side is-origin" }, origin.element, followed.element),
  )

  const hit = figure("hit ratio", "Reads answered from the tape without the origin, of all reads answered.")
  const collapse = figure("collapse ratio", "Of the reads that were no hits, how many cost the origin no request of their own.")
  const delay = figure("delivery delay", "From the arrival of an append to its frames being written to every SSE reader.")
  const cache = figure("on tapes", "Stream bytes kept, and compressed ones made of them.")
  const meter = h("meter", { min: 0, max: 1, high: 0.95, "aria-label": "Cache in use" })
  cache.element.append(meter)
  const health = figure("slow consumers, retries", "Live clients closed because they did not keep up; tries after the first.")
  const sent = figure("sent to clients", "Body bytes since the start; below, what of it came from the origin.")
  const figures = h("section", { class: "figures", "aria-label": "Figures" }, [hit, collapse, delay, cache, sent, health].map((one) => one.element))

  const busiest = h("div", {})
  const noDelay = h("p", { class: "quiet" }, "Nothing was delivered to SSE readers yet.")
  const delayCard = card("Delivery delay", delay.element.title, charts.delay)
  delayCard.append(noDelay)

  const element = h(
    "div",
    { class: "overview" },
    h("h1", { class: "sr" }, "Overview"),
    hero,
    figures,
    h(
      "div",
      { class: "cards" },
      card("Requests by outcome", "A second; live reads count when they end.", charts.outcomes, true),
      card("Clients and origin", "Requests a second.", charts.origin),
      card("Hit and collapse ratio", "Hits of all reads; of the others, those that cost the origin no request of their own.", charts.ratios),
      card("Live readers", subscribers.element.title, charts.subscribers),
      delayCard,
      h("section", { class: "card wide" }, h("h2", {}, "Busiest streams"), busiest),
      card("Bytes a second", "Bodies, without headers.", charts.bytes),
    ),
  )

  async function show(signal) {
    const { overview, point, found } = await look(signal)
    const { history } = memory
    const times = history.points.map((one) => one.at)
    say(clients.value, say_.rate(point?.clients))
    say(clients.more, `${say_.count(total(Object.fromEntries(Object.entries(overview.requests).map(([mode, of]) => [mode, total(of)]))))} since the start`)
    say(origin.value, say_.rate(point?.origin))
    say(origin.more, `${say_.count(total(overview.upstream_requests))} since the start`)
    say(subscribers.value, say_.count(total(overview.subscribers)))
    say(subscribers.more, `${say_.count(overview.subscribers.sse)} SSE, ${say_.count(overview.subscribers.longpoll)} long-poll`)
    say(followed.value, say_.count(overview.followed_streams))
    say(followed.more, overview.followed_streams === 1 ? "one live request" : "one live request each")
    showOffload(overview)

    const since = sinceStart(overview)
    const now = [...history.points].reverse().find((one) => !one.gap && one.hitRatio !== null) ?? since
    say(hit.value, say_.share(now.hitRatio))
    say(hit.more, `${say_.share(since.hitRatio)} since the start`)
    say(collapse.value, say_.share(now.collapseRatio))
    say(collapse.more, `${say_.share(since.collapseRatio)} since the start`)
    const whole = found && { p50: quantile(0.5, found), p99: quantile(0.99, found) }
    const delays = point?.delay?.p50 != null ? point.delay : whole
    say(delay.value, say_.span(delays?.p50))
    say(delay.more, delays?.p99 == null ? "nothing delivered yet" : `p99 ${say_.span(delays.p99)}`)
    noDelay.hidden = delays?.p50 != null
    charts.delay.element.hidden = !noDelay.hidden
    say(cache.value, say_.bytes(overview.cache.bytes))
    say(cache.more, `of ${say_.bytes(overview.cache.limit_bytes)}, ${say_.many(overview.cache.tapes, "tape")}, ${say_.many(overview.cache.evictions, "eviction")}`)
    meter.value = overview.cache.limit_bytes ? overview.cache.bytes / overview.cache.limit_bytes : 0
    say(sent.value, say_.bytes(overview.downstream_bytes))
    say(sent.more, `${say_.bytes(overview.upstream_bytes)} from the origin`)
    say(health.value, `${say_.count(overview.slow_consumers)}, ${say_.count(overview.retries)}`)
    say(health.more, say_.many(overview.connections, "connection"))

    charts.outcomes.show(times, OUTCOMES.map((one) => history.column((point) => point.outcomes[one])))
    charts.origin.show(times, [history.column((point) => point.clients), history.column((point) => point.origin)])
    charts.ratios.show(times, [history.column((point) => point.hitRatio), history.column((point) => point.collapseRatio)])
    charts.subscribers.show(times, [history.column((point) => point.subscribers.sse), history.column((point) => point.subscribers.longpoll)])
    charts.delay.show(times, [history.column((point) => point.delay?.p50), history.column((point) => point.delay?.p99)])
    charts.bytes.show(times, [history.column((point) => point.downstream), history.column((point) => point.upstream)])
    if (looks++ % LOOKS_PER_TOP === 0) await showBusiest(signal)
    return overview
  }

  let looks = 0

  async function showBusiest(signal) {
    const { streams } = await api.top("requests", 6, signal)
    const focused = busiest.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null
    busiest.replaceChildren(streams.length ? table(streams, ["readers", "reads", "hits", "sent"]) : h("p", { class: "quiet" }, "No stream has been read yet."))
    if (focused) busiest.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus()
  }

  function showOffload(overview) {
    const asked = Object.values(overview.requests).reduce((sum, of) => sum + total(of), 0) + total(overview.subscribers)
    const sent = total(overview.upstream_requests)
    beam.lastChild.setAttribute("class", `width-${asked ? Math.max(1, Math.min(20, Math.round((sent / asked) * 20))) : 20}`)
    if (!asked) offload.replaceChildren("Waiting for the first request.")
    else if (!sent) offload.replaceChildren(h("b", {}, "0"), " requests at the origin so far")
    else if (asked < sent) offload.replaceChildren("The origin was asked ", h("b", {}, say_.rate(sent / asked)), " times for each request")
    else offload.replaceChildren("One at the origin for every ", h("b", {}, say_.rate(asked / sent)), " by clients")
  }

  return {
    element,
    show,
    period_ms: 1000,
    recolour: () => Object.values(charts).forEach((chart) => chart.recolour()),
    close: () => Object.values(charts).forEach((chart) => chart.close()),
  }
}
