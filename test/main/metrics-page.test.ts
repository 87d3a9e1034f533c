// Tests of the metrics page of a node on each store. promtool checks the page. For machines without
// promtool, its rules about names and help texts are also checked here.

import { spawnSync } from "node:child_process";
import t, { type Test } from "tap";
import { type Settings, spawnBroker, textPayload } from "../support/broker.ts";
import { findLinter } from "../support/linters.ts";
import { connectNative } from "../support/native-client.ts";
import { startRedis } from "../support/redis.ts";

const promtool = findLinter("promtool");

/** Starts a node, and uses it so that metrics with labels have samples. Returns its metrics. */
async function usedMetrics(t: Test, settings: Settings): Promise<string> {
  const broker = await spawnBroker(t, { JINDOU_AUTH_CLIENTS: "none", ...settings });
  await broker.call("/channel", { channel_id: "g", channel_type: 2, subscribers: ["a", "b"] });
  await connectNative(t, { uid: "b", port: broker.clientPort });
  const message = { from_uid: "a", channel_id: "g", channel_type: 2, payload: textPayload("x") };
  await broker.call("/message/send", message);
  await broker.call("/message/send", { ...message, from_uid: "stranger" });
  await broker.call("/manager/login", { username: "admin", password: "wrong" });
  await broker.call("/metrics");
  return (await broker.call("/metrics")).body;
}

interface Family {
  readonly name: string;
  readonly type: string;
  readonly help: string;
}

function familiesOf(page: string): readonly Family[] {
  const helps = new Map([...page.matchAll(/^# HELP (\S+) ?(.*)$/gm)].map(([, a, b]) => [a, b]));
  return [...page.matchAll(/^# TYPE (\S+) (\S+)$/gm)].map(([, name = "", type = ""]) => ({
    name,
    type,
    help: helps.get(name) ?? "",
  }));
}

/** Units that promtool rejects, because a metric must use the base unit (seconds, bytes, ratio). */
const OTHER_UNITS =
  /_(ms|s|milliseconds|microseconds|minutes|hours|days|kb|mb|kilobytes|percent)\b/;

function complaints(page: string): readonly string[] {
  const families = familiesOf(page);
  const rules: Readonly<Record<string, (family: Family) => boolean>> = {
    "has no help text": ({ help }) => help === "",
    "is a counter without the suffix _total": ({ name, type }) =>
      type === "counter" && !name.endsWith("_total"),
    "has the suffix _total, but is not a counter": ({ name, type }) =>
      type !== "counter" && name.endsWith("_total"),
    "has a suffix of histograms": ({ name, type }) =>
      type !== "histogram" && /_(bucket|count|sum)$/.test(name),
    "has a type in its name": ({ name }) => /_(gauge|counter|histogram|summary)\b/.test(name),
    "is not in snake case": ({ name }) => !/^[a-z][a-z0-9_]*$/.test(name),
    "does not use a base unit": ({ name }) => OTHER_UNITS.test(name.replace(/_total$/, "")),
    "is not unique": ({ name }) => families.filter((family) => family.name === name).length > 1,
  };
  return families.flatMap((family) =>
    Object.entries(rules)
      .filter(([, isBroken]) => isBroken(family))
      .map(([complaint]) => `${family.name} ${complaint}`),
  );
}

t.test(
  "the metrics of a node follow the rules of Prometheus for names and help texts",
  async (t) => {
    const { url } = await startRedis(t);
    const pages = await Promise.all([
      usedMetrics(t, {}),
      usedMetrics(t, { JINDOU_REDIS_URL: url }),
    ]);
    for (const page of pages) {
      t.ok(familiesOf(page).length > 50);
      t.same(complaints(page), []);
    }
    await t.test(
      "`promtool check metrics` finds no problem",
      { skip: promtool.skip },
      async (t) => {
        for (const input of pages) {
          const { status, stdout, stderr } = spawnSync(promtool.path, ["check", "metrics"], {
            input,
            encoding: "utf8",
          });
          t.equal(`${stdout}${stderr}`, "");
          t.equal(status, 0);
        }
      },
    );
  },
);
