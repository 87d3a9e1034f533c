// Draws a result as an SVG: one bar for each workload and peer, relative to raw uWebSockets.js.
// ECharts draws it without a browser. Because of its size, ECharts is not a dependency of this
// project. `.ci/charts` installs ECharts.

import { execFileSync } from "node:child_process";
import { existsSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { ROOT } from "../support/builds.ts";
import { measureOf } from "./report.ts";
import type { OverviewResult } from "./results.ts";

/** The part of ECharts that is used here. */
interface Charts {
  init(
    element: null,
    theme: null,
    options: { renderer: "svg"; ssr: true; width: number; height: number },
  ): { setOption(option: object): void; renderToSVGString(): string; dispose(): void };
}

const WIDTH = 860;
const BAR_HEIGHT = 13;
const HEAD_HEIGHT = 90;
const COLORS: Readonly<Record<string, string>> = { jindou: "#d9480f", raw: "#868e96" };
const OTHER_COLORS = ["#1c7ed6", "#2f9e44", "#9c36b5", "#e8890c", "#0c8599", "#5c940d"];

/** Returns the short name of a workload for the axis. */
function axisName(id: string): string {
  const [, members, via] = /^fanout-(\d+)(-socket)?$/.exec(id) ?? [];
  if (members !== undefined) return `group of ${members},\n${via ? "from a client" : "over HTTP"}`;
  return { post: "HTTP call", send: "message of a\nclient", connect: "connect" }[id] ?? id;
}

/** Returns the SVG, or `undefined` if ECharts is not installed. */
export function picture(result: OverviewResult): string | undefined {
  const charts = loadCharts();
  if (charts === undefined) return undefined;
  const measure = measureOf(result);
  const rows = result.rows.filter(
    ({ unit, figures }) => unit !== "bytes" && figures.some(({ peer }) => peer === "raw"),
  );
  const peers = result.peers.filter(({ name }) =>
    rows.some(({ figures }) => figures.some(({ peer }) => peer === name)),
  );
  const height = HEAD_HEIGHT + rows.length * (peers.length * BAR_HEIGHT + 16);
  const chart = charts.init(null, null, { renderer: "svg", ssr: true, width: WIDTH, height });
  let others = 0;
  chart.setOption({
    animation: false,
    backgroundColor: "#ffffff",
    title: {
      text: `${measure.title} relative to raw uWebSockets.js (${measure.isLowerBetter ? "shorter" : "longer"} is better)`,
      left: 12,
      top: 8,
      textStyle: { fontSize: 15 },
    },
    legend: { top: 34, left: 12, itemHeight: 10, itemGap: 28 },
    grid: { left: 130, right: 60, top: 66, bottom: 24 },
    xAxis: { type: "value", axisLabel: { formatter: (ratio: number) => ratio.toFixed(1) } },
    yAxis: { type: "category", inverse: true, data: rows.map(({ id }) => axisName(id)) },
    series: peers.map(({ name, title }) => ({
      type: "bar",
      name: title,
      color: COLORS[name] ?? OTHER_COLORS[others++ % OTHER_COLORS.length],
      barGap: "10%",
      label: {
        show: true,
        position: "right",
        fontSize: 10,
        formatter: ({ value }: { value: unknown }) =>
          typeof value === "number" ? value.toFixed(2) : "",
      },
      data: rows.map(({ figures }) => {
        const figure = figures.find(({ peer }) => peer === name);
        return (figure && measure.of(figure)) ?? "-";
      }),
    })),
  });
  const svg = chart.renderToSVGString();
  chart.dispose();
  // Removes the style rules for a mouse, and adds a title for screen readers.
  return svg
    .replace(/<style >.*?<\/style>\n?/s, "")
    .replace(/^<svg [^>]*>/, (tag) => `${tag}\n<title>Jindou and its peers</title>`);
}

function loadCharts(): Charts | undefined {
  const script = join(ROOT, ".ci/charts");
  const folder = execFileSync(script, ["--print"], { encoding: "utf8" }).trim();
  if (!existsSync(join(folder, "node_modules/echarts"))) return undefined;
  return createRequire(join(folder, "package.json"))("echarts") as Charts;
}
