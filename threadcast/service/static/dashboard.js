// What pages gain by scripts: plots that zoom, a key that searches, forms that need no button. All works without.
"use strict";

(() => {
  const EDGE = "edge of a band";
  const UNITS = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];

  const significant = (value) => Number(value.toPrecision(3)).toLocaleString("en", { maximumSignificantDigits: 3 });

  const shown = (value, unit) => {
    if (value === null || value === undefined) return "–";
    if (unit === "s") {
      if (value === 0) return "0";
      const [scale, name] = UNITS.find(([s]) => Math.abs(value) >= s) || UNITS[3];
      return `${significant(value / scale)} ${name}`;
    }
    return significant(value) + (unit === "x" ? "x" : " %");
  };

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // The series of a chart: where a line has a band, its two edges come first, without a place in the legend.
  const seriesOf = (chart) => {
    const series = [{ label: chart.xLabel, value: (_, v) => (v === null ? "–" : xText(chart, v)) }];
    const data = [chart.x];
    const bands = [];
    for (const line of chart.lines) {
      const tone = colour(`--c${line.tone}`);
      if (line.low.length) {
        for (const edge of [line.high, line.low]) {
          series.push({ label: EDGE, stroke: "transparent", width: 0, points: { show: false }, spanGaps: true });
          data.push(edge);
        }
        bands.push({ series: [series.length - 2, series.length - 1], fill: `${tone}2b` });
      }
      const value = (_, v) => shown(v, chart.unit);
      const points = line.marks === "dots" ? { show: true, size: 8, fill: tone, stroke: tone }
        : line.marks === "ring" ? { show: true, size: 17, fill: "transparent", stroke: tone, width: 2 }
        : { show: chart.x.length < 2, size: 8, fill: tone };
      series.push({ label: line.name, stroke: tone, width: line.marks ? 0 : 2.2, points, spanGaps: true, value, paths: line.marks ? () => null : undefined });
      data.push(line.values);
    }
    return { series, data, bands };
  };

  const xText = (chart, value) => significant(value);

  const optionsOf = (chart, width, series, bands) => {
    const soft = colour("--soft");
    const axis = { stroke: soft, grid: { stroke: colour("--grid"), width: 1 }, ticks: { stroke: colour("--grid"), width: 1 }, font: "12px system-ui, sans-serif" };
    const powers = chart.x.filter((v) => Number.isInteger(Math.log2(v)));
    const x = { ...axis, label: chart.xLabel, labelSize: 22, labelFont: "12px system-ui, sans-serif" };
    if (chart.xLog) {
      x.splits = () => powers;
      x.filter = (_, splits) => splits;
      x.values = (_, splits) => splits.map((v) => `${v}`);
    } else {
      x.incrs = [1, 2, 5, 10, 20, 50, 100];
    }
    const y = { ...axis, size: 72, values: (_, splits) => splits.map((v) => (v === null ? "" : shown(v, chart.unit))) };
    if (!chart.yLog) y.filter = undefined;
    return {
      width, height: Math.max(260, Math.min(420, width * 0.5)), series, bands,
      cursor: { drag: { x: true, y: true, uni: 20 }, points: { size: 7 } },
      legend: { live: true },
      scales: {
        x: { time: false, distr: chart.xLog ? 3 : 1, log: 2, range: padded(chart) },
        // Functions, as with arrays a double click would leave the zoomed range.
        y: chart.yLog
          ? { distr: 3, log: 10, ...(chart.within && { range: () => chart.within }) }
          : { range: (_, low, high) => (chart.within ? [0, chart.within[1]] : [Math.min(0, low), high * 1.08 || 1]) },
      },
      axes: [x, y],
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      hooks: { ready: [describe(chart)] },
    };
  };

  const padded = (chart) => (_, low, high) => {
    if (low === null) return [low, high];
    const [only] = chart.x;
    if (chart.x.length === 1) return chart.xLog ? [only / 1.5, only * 1.5] : [only - 1, only + 1];
    if (chart.xLog) return [low / 1.08, high * 1.08];
    const room = (high - low) * 0.03;
    return [low - room, high + room];
  };

  const describe = (chart) => (plot) => {
    const canvas = plot.root.querySelector("canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${chart.title}. Drag to zoom, double-click to see all.`);
    for (const row of plot.root.querySelectorAll(".u-series")) if (row.querySelector(".u-label").textContent === EDGE) row.style.display = "none";
  };

  const drawn = new Map();

  const draw = (place) => {
    const description = place.querySelector("script[type='application/json']");
    if (!description || typeof uPlot === "undefined") return;
    const chart = JSON.parse(description.textContent);
    if (!chart.x.length) return;
    const { series, data, bands } = seriesOf(chart);
    if (drawn.has(place)) drawn.get(place).destroy();
    drawn.set(place, new uPlot(optionsOf(chart, place.clientWidth, series, bands), data, place));
  };

  const drawAll = (within = document) => within.querySelectorAll(".plot").forEach(draw);

  const resized = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const plot = drawn.get(target);
      if (plot && Math.abs(plot.width - target.clientWidth) > 1) draw(target);
    }
  });

  const prepare = () => {
    document.documentElement.classList.add("js");
    document.querySelector("nav [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
    drawAll();
    document.querySelectorAll(".plot").forEach((place) => resized.observe(place));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll());
    document.querySelectorAll("form[data-submit-on-change]").forEach((form) => form.addEventListener("change", () => form.requestSubmit()));
    document.addEventListener("keydown", (event) => {
      const typing = event.target.closest?.("input, select, textarea, [contenteditable]");
      const search = document.getElementById("q");
      if (event.key === "/" && !typing && search && !event.ctrlKey && !event.metaKey && !event.altKey) {
        event.preventDefault();
        search.focus();
        search.select();
      }
    });
  };

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", prepare);
  else prepare();
})();
