// A chart of the last few minutes, drawn by uPlot in the style sheet's colours.

import { useEffect, useRef, useState } from "preact/hooks";
import UPlot from "uplot";
import { clockTime } from "./format.ts";
import { Help } from "./parts.tsx";

interface Line {
  readonly label: string;
  /** One value for each time of the chart. `null` leaves a gap. */
  readonly values: readonly (number | null)[];
}

const HEIGHT = 150;
/** Minimum time span of the axis, so that a single value can be drawn. */
const MIN_SPAN_S = 60;
/** Time span below which the axis labels show seconds. */
const SECONDS_BELOW_S = 240;
const COLOURS = ["accent", "gold", "muted"];

export function Chart(props: {
  readonly title: string;
  readonly help: string;
  /** Unix times in seconds. */
  readonly times: readonly number[];
  readonly lines: readonly Line[];
  readonly format: (value: number) => string;
}) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<UPlot | undefined>(undefined);
  const scheme = useColourScheme();
  const { title, times, lines, format } = props;
  const data = [times, ...lines.map(({ values }) => values)] as unknown as UPlot.AlignedData;
  const latest = useRef({ data, format });
  latest.current = { data, format };
  const labels = lines.map(({ label }) => label).join("\n");

  useEffect(() => {
    const element = box.current;
    if (element === null) return;
    const create = () => {
      const options = optionsOf(element, labels.split("\n"), (v) => latest.current.format(v));
      plot.current = new UPlot(options, latest.current.data, element);
    };
    create();
    const observer = new ResizeObserver(() =>
      plot.current?.setSize({ width: element.clientWidth, height: HEIGHT }),
    );
    observer.observe(element);
    return () => {
      observer.disconnect();
      plot.current?.destroy();
      plot.current = undefined;
    };
  }, [labels, scheme]);

  useEffect(() => plot.current?.setData(data), [data]);

  return (
    <section class="card chart">
      <h2>
        {title}
        <Help of={title}>{props.help}</Help>
      </h2>
      <ul class="legend">
        {lines.map(({ label, values }, index) => (
          <li key={label}>
            <i class={`key key-${index}`} />
            {label} <strong>{lastOf(values, format)}</strong>
          </li>
        ))}
      </ul>
      <div
        class="plot"
        ref={box}
        role="img"
        aria-label={`${title}: ${lines.map(({ label, values }) => `${label} ${lastOf(values, format)}`).join(", ")}`}
      />
    </section>
  );
}

function lastOf(values: Line["values"], format: (value: number) => string): string {
  const value = values.at(-1);
  return value === undefined || value === null ? "–" : format(value);
}

function optionsOf(
  element: HTMLElement,
  labels: readonly string[],
  format: (value: number) => string,
): UPlot.Options {
  const colour = (name: string) => colourOf(element, name);
  const font = `11px ${getComputedStyle(element).fontFamily}`;
  const axis = { stroke: colour("muted"), font, ticks: { show: false } };
  return {
    width: element.clientWidth,
    height: HEIGHT,
    padding: [8, 28, 0, 0],
    legend: { show: false },
    cursor: { y: false, points: { size: 6 } },
    scales: {
      x: {
        range: ({ data: [times] }, min, max) => {
          // If there is only one value, uPlot passes a range of one day, which begins at the
          // value's time.
          const last = times.length > 1 ? max : min;
          return [Math.min(min, last - MIN_SPAN_S), last];
        },
      },
      y: { range: (_, __, max) => [0, max > 0 ? max * 1.1 : 1] },
    },
    axes: [
      {
        ...axis,
        grid: { show: false },
        space: 70,
        size: 28,
        values: (_, splits) => clockTimes(splits),
      },
      {
        ...axis,
        grid: { stroke: colour("line"), width: 1 },
        size: 64,
        space: 34,
        values: (_, splits) => splits.map(format),
      },
    ],
    series: [
      {},
      ...labels.map((label, index) => ({
        label,
        stroke: colour(COLOURS[index] ?? "muted"),
        width: 2,
        points: { show: false },
      })),
    ],
  };
}

/** Formats the times, with seconds if the chart spans less than `SECONDS_BELOW_S`. */
function clockTimes(times: readonly number[]): string[] {
  const spanS = (times.at(-1) ?? 0) - (times[0] ?? 0);
  const length = spanS < SECONDS_BELOW_S ? "HH:mm:ss".length : "HH:mm".length;
  return times.map((time) => clockTime(time * 1000).slice(0, length));
}

/** Returns a colour from the style sheet in a form that a canvas accepts. */
function colourOf(element: HTMLElement, name: string): string {
  const probe = document.createElement("span");
  probe.className = `paint-${name}`;
  element.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

function useColourScheme(): boolean {
  const [isDark, setDark] = useState(() => matchMedia("(prefers-color-scheme: dark)").matches);
  useEffect(() => {
    const query = matchMedia("(prefers-color-scheme: dark)");
    const change = () => setDark(query.matches);
    query.addEventListener("change", change);
    return () => query.removeEventListener("change", change);
  }, []);
  return isDark;
}
