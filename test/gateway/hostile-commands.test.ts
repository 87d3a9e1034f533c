// One client floods the broker with commands and acknowledgements of commands: others are served in
// turn, and the broker still stops in time with all that it acknowledged. Through the doors of a
// process of its own: its processor time and its exit code are what is promised.

import { readFileSync } from "node:fs";
import { spawnBroker } from "../support/broker.ts";
import { connectNative } from "../support/native-client.ts";
import { t } from "../support/suite.ts";

const MEMBERS = Number(process.env.JINDOU_TEST_MEMBERS ?? 2000);
const COMMANDS = 40;
const ACKS = 100;
const UNKNOWN = Array.from({ length: 1000 }, (_, at) => at + 2);
const SETTINGS = {
  ...{ JINDOU_AUTH_CLIENTS: "none", JINDOU_DRAIN_TIMEOUT_MS: "1000" },
  JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "0", // the limit of work would hold the flood off before it is one
};
const PATIENCE = { timeoutMs: 120_000 };

t.test("a flood of commands to a large group", async (t) => {
  const broker = await spawnBroker(t, SETTINGS);
  const connect = (uid: string) => connectNative(t, { port: broker.clientPort, uid, ...PATIENCE });
  const members = Array.from({ length: MEMBERS }, (_, at) => `m${at}`);
  await broker.call("/channel", {
    ...{ channel_id: "crowd", channel_type: 2 },
    subscribers: ["attacker", ...members],
  });
  const crowd = { id: "crowd", type: 2 } as const;
  const [attacker, good] = [await connect("attacker"), await connect("good")];
  const acknowledged: string[] = [];
  const flood = (round: string) =>
    Array.from({ length: COMMANDS }, async (_, at) => {
      const clientMsgNo = `${round}-${at}`;
      const options = { syncOnce: true, clientMsgNo };
      const sent = await attacker.send(crowd, "x", options).catch(() => undefined);
      if (sent !== undefined) acknowledged.push(clientMsgNo);
      return sent;
    });

  await t.test("leaves room for a good client's command", async (t) => {
    let answered = 0;
    const flooding = flood("one").map((sent) => sent.finally(() => answered++));
    while (answered < COMMANDS / 5) await Promise.any(flooding.slice(answered));
    const before = answered;
    await good.send({ id: "bob", type: 1 }, "y", { syncOnce: true });
    const passed = answered - before;
    t.comment(`${passed} of ${COMMANDS - before} were answered before it`);
    t.ok(passed < (COMMANDS - before) / 2, "it did not wait for the flood");
    t.ok((await Promise.all(flooding)).every((sent) => sent !== undefined));
  });

  await t.test("does not keep the broker from stopping", async (t) => {
    const flooding = flood("two");
    await Promise.race(flooding);
    t.equal(await broker.terminate(), 0);
    await Promise.all(flooding);
    const again = await spawnBroker(t, SETTINGS, broker.dataPath);
    const m0 = await connectNative(t, {
      ...{ port: again.clientPort, uid: "m0", ...PATIENCE },
    });
    const has = () => new Set(m0.commands.map(({ message }) => message.clientMsgNo));
    await m0.waitFor(() => acknowledged.every((no) => has().has(no)), "every acknowledged command");
    t.equal(m0.commands.length, has().size, "none came twice");
    t.ok(acknowledged.length > COMMANDS, "some of the second flood were");
  });
});

t.test("acknowledging unknown commands costs next to nothing", async (t) => {
  const broker = await spawnBroker(t, SETTINGS);
  const connect = (uid: string) => connectNative(t, { port: broker.clientPort, uid, ...PATIENCE });
  const [attacker, good] = [await connect("attacker"), await connect("good")];
  for (let at = 0; at < 3; at++)
    await good.send({ id: "attacker", type: 1 }, "x", { syncOnce: true });
  const known = await attacker.acknowledge([2, 3]);
  t.equal(known.count, 2);
  const beforeMs = cpuMs(broker.process.pid);
  const acks = Array.from({ length: ACKS }, () => attacker.acknowledge(UNKNOWN));
  for (const { count } of await Promise.all(acks)) t.equal(count, 0);
  const eachMs = (cpuMs(broker.process.pid) - beforeMs) / ACKS;
  t.comment(`${eachMs} ms of the processor for 1,000 unknown ones`);
  t.ok(eachMs < 5, "an acknowledgement of 1,000 unknown ones is a look");
});

/** Processor time that the process has used; the system counts in hundredths of a second. */
function cpuMs(pid: number | undefined): number {
  const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  return (Number(fields[11]) + Number(fields[12])) * 10;
}
