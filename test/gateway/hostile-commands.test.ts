// One client floods the broker with commands and with acknowledgements of commands. Other clients
// are still served in turn, and the broker stops in time without losing anything that it
// acknowledged. Runs against a separate process, because the tests check its processor time and
// exit code.

import { readFileSync } from "node:fs";
import { spawnBroker } from "../support/broker.ts";
import { leastBelow } from "../support/least.ts";
import { connectNative } from "../support/native-client.ts";
import { commandCallsIn, startRedis } from "../support/redis.ts";
import { t } from "../support/suite.ts";

const MEMBERS = Number(process.env.JINDOU_TEST_MEMBERS ?? 2000);
const COMMANDS = 40;
const ACKS = 100;
/** Number of attempts. A busy machine may delay any single attempt. */
const ATTEMPTS = 3;
const UNKNOWN = Array.from({ length: 1000 }, (_, at) => at + 2);
const SETTINGS = {
  ...{ JINDOU_AUTH_CLIENTS: "none", JINDOU_DRAIN_TIMEOUT_MS: "1000" },
  // A sender may fill a tenth of an inbox. That tenth has room for the commands of all floods.
  JINDOU_COMMANDS_MAX_INBOX: "10000",
  // The rate limit would stop the flood before it starts.
  JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "0",
};
const PATIENCE = { timeoutMs: 120_000 };

t.test(
  "a flood of commands to a large group blocks neither other clients nor the shutdown",
  async (t) => {
    const broker = await spawnBroker(t, SETTINGS);
    const connect = (uid: string) =>
      connectNative(t, { port: broker.clientPort, uid, ...PATIENCE });
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

    await t.test(
      "a client's command does not wait for the flood of commands of another client",
      async (t) => {
        let floods = 0;
        const share = await leastBelow(0.5, ATTEMPTS, async () => {
          let answered = 0;
          const flooding = flood(`one-${floods++}`).map((sent) => sent.finally(() => answered++));
          while (answered < COMMANDS / 5) await Promise.any(flooding.slice(answered));
          const before = answered;
          await good.send({ id: "bob", type: 1 }, "y", { syncOnce: true });
          const passed = answered - before;
          t.comment(
            `${passed} of ${COMMANDS - before} commands of the flood were answered before the other client's command`,
          );
          t.ok((await Promise.all(flooding)).every((sent) => sent !== undefined));
          return passed / (COMMANDS - before);
        });
        t.ok(
          share < 0.5,
          "fewer than half of the flood's commands were answered before the other client's command",
        );
      },
    );

    await t.test(
      "the broker exits with 0 on SIGTERM during a flood of commands and keeps every acknowledged command",
      async (t) => {
        const earlier = acknowledged.length;
        const flooding = flood("two");
        await Promise.race(flooding);
        t.equal(await broker.terminate(), 0);
        await Promise.all(flooding);
        const again = await spawnBroker(t, SETTINGS, broker.dataPath);
        const m0 = await connectNative(t, {
          ...{ port: again.clientPort, uid: "m0", ...PATIENCE },
        });
        const received = () => new Set(m0.commands.map(({ message }) => message.clientMsgNo));
        await m0.waitFor(
          () => acknowledged.every((no) => received().has(no)),
          "every acknowledged command",
        );
        t.equal(m0.commands.length, received().size, "no command was received twice");
        t.ok(acknowledged.length > earlier, "some commands of the second flood were acknowledged");
      },
    );
  },
);

t.test("a command refused because its sender is in debt causes no read of members", async (t) => {
  const redis = await startRedis(t);
  const broker = await spawnBroker(t, {
    ...{ JINDOU_AUTH_CLIENTS: "none", JINDOU_REDIS_URL: redis.url },
    // A debt is not paid before the test ends, even on a busy machine.
    JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "5",
  });
  const members = Array.from({ length: 2000 }, (_, at) => `m${at}`);
  await broker.call("/channel", {
    ...{ channel_id: "crowd", channel_type: 2 },
    subscribers: ["attacker", ...members],
  });
  const attacker = await connectNative(t, {
    ...{ port: broker.clientPort, uid: "attacker", ...PATIENCE },
  });
  const client = redis.client();
  const reads = async () => commandCallsIn(await client.info("commandstats"), "sunion");
  const readsBefore = await reads();
  const crowd = { id: "crowd", type: 2 } as const;
  const results = await Promise.allSettled(
    Array.from({ length: COMMANDS }, () => attacker.send(crowd, "x", { syncOnce: true })),
  );
  const stored = results.filter(({ status }) => status === "fulfilled").length;
  t.ok(stored >= 1 && stored < COMMANDS / 2, `${stored} of ${COMMANDS} commands were stored`);
  // Two commands may read the members at the same time, before the first of them is charged.
  const read = (await reads()) - readsBefore;
  t.ok(read <= stored + 1, `the members were read ${read} times`);
});

t.test(
  "a command whose deliveries cost more than the whole budget is delivered and leaves a debt",
  async (t) => {
    const broker = await spawnBroker(t, {
      ...{ JINDOU_AUTH_CLIENTS: "none", JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "5" },
      ...{ JINDOU_CLIENT_FRAME_BURST: "20", JINDOU_CLIENT_USER_RATE_FACTOR: "2" },
    });
    const members = Array.from({ length: 60 }, (_, at) => `m${at}`);
    await broker.call("/channel", {
      ...{ channel_id: "team", channel_type: 2, large: 1 },
      subscribers: ["sender", ...members],
    });
    const connect = (uid: string) =>
      connectNative(t, { port: broker.clientPort, uid, ...PATIENCE });
    const sender = await connect("sender");
    const receivers = await Promise.all(members.map(connect));
    const team = { id: "team", type: 2 } as const;
    const send = (clientMsgNo: string) =>
      sender.send(team, "x".repeat(60_000), { syncOnce: true, clientMsgNo });
    await send("first"); // 60 KB to 60 sessions cost about 50, and the budget is 40
    for (const receiver of receivers)
      await receiver.waitFor(
        () => receiver.messages.some(({ clientMsgNo }) => clientMsgNo === "first"),
        "the command",
      );
    await t.rejects(send("second"), /rate_limited/);
  },
);

t.test("acknowledging unknown commands uses almost no processor time", async (t) => {
  const broker = await spawnBroker(t, SETTINGS);
  const connect = (uid: string) => connectNative(t, { port: broker.clientPort, uid, ...PATIENCE });
  const [attacker, good] = [await connect("attacker"), await connect("good")];
  for (let at = 0; at < 3; at++)
    await good.send({ id: "attacker", type: 1 }, "x", { syncOnce: true });
  const acknowledgement = await attacker.acknowledge([2, 3]);
  t.equal(acknowledgement.count, 2);
  const eachMs = await leastBelow(5, ATTEMPTS, async () => {
    const beforeMs = cpuMs(broker.process.pid);
    const acks = Array.from({ length: ACKS }, () => attacker.acknowledge(UNKNOWN));
    for (const { count } of await Promise.all(acks)) t.equal(count, 0);
    return (cpuMs(broker.process.pid) - beforeMs) / ACKS;
  });
  t.comment(`${eachMs} ms of processor time for 1,000 unknown commands`);
  t.ok(eachMs < 5, "acknowledging 1,000 unknown commands takes less than 5 ms");
});

/** Returns the processor time used by the process. The system counts in hundredths of a second. */
function cpuMs(pid: number | undefined): number {
  const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  return (Number(fields[11]) + Number(fields[12])) * 10;
}
