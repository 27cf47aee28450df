// uPlot in the page's colours.  A chart is a list of series with CSS variables as colours; `show` gives it its columns.

import uPlot from "./vendor/uplot/uPlot.esm.js"
import { h } from "./dom.js"
import { MEMORY_S } from "./rates.js"

const WINDOW_S = 60
const STEPS_S = [10, 30, 60, 120]
const BINARY = Array.from({ length: 50 }, (_, power) => 2 ** power)
const HEIGHT = 168

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim()

/** A colour with an alpha, in the canvas's notation. */
const thin = (name) => `color-mix(in srgb, ${colour(name)} 16%, transparent)`

/** Stacked areas overlap, so they are opaque: otherwise the lower area would tint the upper. */
const solid = (name) => `color-mix(in srgb, ${colour(name)} 82%, ${colour("--surface")})`

/** Columns summed from the bottom up, for stacked areas; a gap stays a gap. */
function stacked(columns) {
  const sums = columns[0]?.map(() => 0) ?? []
  return columns.map((column) => column.map((value, at) => (value === null ? null : (sums[at] += value))))
}

/**
 * A chart.  `series` is `[{label, colour}]`, bottom first; `format` formats a value; `isStacked` stacks areas.
 * `most` is the top of the scale for values that have a bound; values below 0 extend the scale downwards.
 */
export class Chart {
  constructor({ label, series, format, isStacked = false, most = null, isBytes = false }) {
    this.isBytes = isBytes
    this.series = series
    this.format = format
    this.isStacked = isStacked
    this.most = most
    this.box = h("div", { class: "chart", role: "img", "aria-label": label })
    this.keys = series.map((one) => h("span", { class: "key" }, h("i", { class: `swatch ${one.colour.slice(2)}` }), one.label, h("b")))
    this.legend = h("div", { class: "legend" }, this.keys)
    this.element = h("div", {}, this.box, this.legend)
    this.plot = null
    this.raw = null
    this.resizer = new ResizeObserver(() => this.#fit())
    this.resizer.observe(this.box)
  }

  /** Draw `times` (Unix seconds) and one column for each series. */
  show(times, columns) {
    this.raw = columns
    this.data = this.isStacked ? [times, ...stacked(columns).reverse()] : [times, ...columns]
    if (!this.plot && this.box.clientWidth) this.#make()
    this.plot?.setData(this.data)
    this.#tell(this.plot?.cursor.idx ?? null)
  }

  /** Build the plot again, in the colours of another theme. */
  recolour() {
    this.plot?.destroy()
    this.plot = null
    if (this.data) this.show(this.data[0], this.raw)
  }

  close() {
    this.resizer.disconnect()
    this.plot?.destroy()
  }

  #tell(index) {
    const at = index ?? this.raw[0].length - 1
    this.keys.forEach((key, n) => {
      const value = this.raw[n][at] ?? null
      key.querySelector("b").textContent = value === null ? "" : this.format(value)
      key.classList.toggle("is-nothing", this.series.length > 4 && !this.raw[n].some((value) => value))
    })
  }

  #fit() {
    if (this.plot) this.plot.setSize({ width: this.box.clientWidth, height: HEIGHT })
    else if (this.data && this.box.clientWidth) this.show(this.data[0], this.raw)
  }

  #make() {
    const drawn = this.isStacked ? this.series.toReversed() : this.series
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" }
    const options = {
      width: this.box.clientWidth,
      height: HEIGHT,
      padding: [8, 16, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { show: !this.isStacked, size: 6 }, drag: { x: false, y: false } },
      scales: {
        x: { range: (_, low, high) => reach(low, high) },
        y: { range: (_, low, high) => [Math.min(0, low ?? 0), this.most ?? Math.max(high ?? 0, 1e-9) * 1.1] },
      },
      axes: [
        { ...axis, grid: { show: false }, size: 26, splits: (plot) => marks(plot), values: (plot, ticks) => ticks.map((tick) => ago(plot.scales.x.max - tick)) },
        { ...axis, size: 58, space: 34, ...(this.isBytes && { incrs: BINARY }), values: (_, ticks) => ticks.map((tick) => this.format(tick)) },
      ],
      series: [
        {},
        ...drawn.map((one) => ({
          label: one.label,
          stroke: colour(one.colour),
          width: this.isStacked ? 1 : 1.75,
          fill: this.isStacked ? solid(one.colour) : one.isFilled ? thin(one.colour) : undefined,
          dash: one.isDashed ? [4, 4] : undefined,
          points: { show: false },
        })),
      ],
      hooks: { setCursor: [(plot) => this.#tell(plot.cursor.idx)] },
    }
    this.plot = new uPlot(options, this.data, this.box)
  }
}

/** At least the window, at most the remembered span; uPlot passes nulls before there is data. */
function reach(low, high) {
  const end = high ?? WINDOW_S
  return [Math.max(Math.min(low ?? end, end - WINDOW_S), end - MEMORY_S), end]
}

/** Ticks at whole steps back from now. */
function marks(plot) {
  const { min, max } = plot.scales.x
  const most = Math.max(1, plot.width / 84)
  const step = STEPS_S.find((one) => (max - min) / one <= most) ?? 300
  return Array.from({ length: Math.floor((max - min) / step + 1e-6) + 1 }, (_, at) => max - at * step).reverse()
}

const ago = (seconds) => {
  const whole = Math.round(seconds)
  if (whole <= 0) return "now"
  return whole % 60 === 0 ? `−${whole / 60} min` : whole % 30 === 0 && whole > 60 ? `−${Math.floor(whole / 60)}½ min` : `−${whole} s`
}
