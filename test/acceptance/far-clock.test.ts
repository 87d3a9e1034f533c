// Nodes whose wall clock shows a time that cannot be right. Message ids must stay below 2^53 and
// differ from each other.

import t from "tap";
import { draftOf } from "../contract/store-fixture.ts";
import { crashedCopy, openStore, storeIn, testFolder } from "../store/embedded/folder.ts";
import { textPayload } from "../support/broker.ts";
import { type ShiftedBroker, spawnShifted } from "../support/shifted-clock.ts";

const HOUR_MS = 3_600_000;
/** Returns the time from now until a year begins, in milliseconds. */
const until = (year: number) => Date.UTC(year, 0, 1) - Date.now();

async function send(node: ShiftedBroker): Promise<number> {
  const { status, body } = await node.broker.call("/message/send", {
    ...{ from_uid: "a", channel_id: "b", channel_type: 1, payload: textPayload("hello") },
  });
  if (status !== 200) throw new Error(`a send was answered with ${status}`);
  return body.message_id;
}

async function gauge(node: ShiftedBroker): Promise<string | undefined> {
  const { body } = await node.broker.call("/metrics");
  return /^jindou_clock_invalid (\d)$/m.exec(body)?.[1];
}

t.test("a node does not start while its clock shows a time after 2080", async (t) => {
  for (const year of [2081, 2100, 9999])
    await t.rejects(spawnShifted(t, {}, until(year)), {
      message: /The clock of this machine shows \d{4,6}-.*Set the clock/,
    });
  const node = await spawnShifted(t, {}, until(2079));
  t.ok((await send(node)) < 2 ** 53, "an earlier time is used");
});

t.test("a node whose clock jumps beyond 2080 assigns ids from the last valid time", async (t) => {
  const node = await spawnShifted(t);
  const ids = [await send(node)];
  t.equal(await gauge(node), "0");
  for (const year of [2081, 2100, 9999]) {
    await node.shiftTo(until(year));
    for (let i = 0; i < 20; i++) ids.push(await send(node));
    t.equal(await gauge(node), "1", `${year}`);
  }
  t.match(node.broker.output(), /"level":"error".*shows a time after 2080/);
  await node.shiftTo(0);
  t.equal(await gauge(node), "0");
  ids.push(await send(node));
  await node.restart();
  ids.push(await send(node));
  t.same(
    ids,
    [...new Set(ids)].sort((a, b) => a - b),
    "the ids differ and grow",
  );
  const [first = 0] = ids;
  t.ok((ids.at(-1) ?? 0) - first < HOUR_MS * 4096, "no id comes from an invalid time");
});

t.test("a store with message ids above 2^53 does not start", async (t) => {
  const path = testFolder(t);
  const store = await openStore(t, path);
  await store.append(draftOf());
  await store.checkpoint();
  const copy = await crashedCopy(t, path, (meta) => {
    const [version, segment, offset] = meta.get("journal") ?? [];
    meta.set("journal", [version, segment, offset, 9.8e15]);
  });
  await t.rejects(storeIn(copy).start(), { code: "internal", message: /has message ids above/ });
});
