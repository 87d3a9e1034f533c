// The arithmetic of the benchmarks: medians, spreads, and whether a target is reached.

import t from "tap";
import { reached } from "../../bench/support/benchmark.ts";
import { median, row, spread } from "../../bench/support/stats.ts";

t.test("the median of an even number of values is the mean of the two middle values", async (t) => {
  t.equal(median([4, 1, 2]), 2);
  t.equal(median([4, 1, 2, 10]), 3);
  t.ok(Number.isNaN(median([])));
});

t.test("the spread is the range of the rounds divided by their median", async (t) => {
  t.equal(spread([90, 100, 120]), 0.3);
});

t.test(
  "a benchmark row contains the ratio of the two medians, and whether its target was reached",
  async (t) => {
    const subjects = [{ name: "raw" }, { name: "ours" }] as const;
    const samples = [
      [{ value: 100 }, { value: 200 }, { value: 900 }],
      [{ value: 99 }, { value: 80 }, { value: 500 }],
    ] as const;
    const question = { title: "q", unit: "x/s" };
    const at = (atLeast: number) =>
      row({ ...question, target: { kind: "ratio", atLeast } }, subjects, samples);
    t.equal(at(0.4).ratio, 0.495);
    t.equal(reached(at(0.4)), true);
    t.equal(reached(at(0.5)), false);
    t.equal(reached(row(question, subjects, samples)), undefined);
    const small = { kind: "value", atMost: 98 } as const;
    t.equal(reached(row({ ...question, target: small }, subjects, samples)), false);
  },
);

t.test("latencies and processor time are reported as medians over the rounds", async (t) => {
  const latency = (p50: number) => ({ p50, p99: p50, p999: p50, max: p50 });
  const samples = [3, 1, 2].map((us) => ({
    value: 1,
    latency: latency(us),
    cpuUs: us * 10,
  }));
  const { ours, baseline } = row(
    { title: "q", unit: "x/s" },
    [{ name: "raw" }, { name: "ours" }],
    [[{ value: 1 }], samples],
  );
  t.equal(ours.latency?.p50, 2);
  t.equal(ours.cpuUs, 20);
  t.equal(baseline.latency, undefined);
});
