// A database library that reports a write as done although its rows are missing, or that never
// finishes a write, as lmdb does if the disk is full. The node exits by itself and prints one
// sentence. The next start finds every acknowledged message in the WAL.

import { setTimeout as pause } from "node:timers/promises";
import t from "tap";
import { BRITTLE_STORE, spawnBroker, textPayload } from "../support/broker.ts";
import { mountSmallDisk, type SmallDisk } from "../support/small-disk.ts";

const GROUP = { channel_id: "group", channel_type: 2 } as const;
const DISK_MIB = 48;
/** Additional time that a busy machine may need until the process has ended. */
const MARGIN_MS = 5000;

interface Fault {
  readonly title: string;
  readonly fault: "lost" | "stuck";
  /** True if the data folder is on a disk with little space. */
  readonly isTight: boolean;
  /** Time within which the node ends, as the manual says. */
  readonly endsWithinMs: number;
  readonly sentence: RegExp;
}

const FAULTS: readonly Fault[] = [
  {
    title: "loses a write that it had reported as done",
    ...{ fault: "lost", isTight: false, endsWithinMs: 10_000 },
    sentence: /^jindou: The database lost a write that it had reported as done\. Check the disk/m,
  },
  {
    title: "never finishes a write while the disk has little space",
    ...{ fault: "stuck", isTight: true, endsWithinMs: 10_000 },
    sentence: /^jindou: The database could not finish a write, because its disk was full\. Free/m,
  },
  {
    title: "never finishes a write while the disk has space, as under a quota",
    ...{ fault: "stuck", isTight: false, endsWithinMs: 30_000 },
    sentence:
      /^jindou: The database has not finished a write for 30 s\. Check the disk and its quota/m,
  },
];

t.jobs = FAULTS.length;

for (const { title, fault, isTight, endsWithinMs, sentence } of FAULTS)
  t.test(
    `if the database of a node ${title}, the node exits with an error message, and has every acknowledged message after its next start`,
    async (t) => {
      const disk: SmallDisk | undefined = isTight ? await mountSmallDisk(t, DISK_MIB) : undefined;
      const folder = disk && `${disk.path}/data`;
      const launch = { prefix: disk?.prefix ?? [] };
      const node = await spawnBroker(t, { FAULT: fault }, folder, { ...BRITTLE_STORE, ...launch });
      const acknowledged = new Map<string, number>();
      const send = async (from: typeof node, name: string) => {
        const message = { ...GROUP, from_uid: "alice", client_msg_no: name };
        const reply = await from
          .call("/message/send", { ...message, payload: textPayload(name) })
          .catch(() => undefined);
        if (reply?.status === 200) acknowledged.set(name, reply.body.message_seq);
        return reply?.status === 200;
      };
      await node.call("/channel", { ...GROUP, subscribers: ["alice"] });
      for (let i = 0; i < 10; i++) await send(node, `before ${i}`);
      node.process.kill("SIGUSR2");
      const startedAtMs = performance.now();
      for (let i = 0; node.process.exitCode === null; i++) {
        await send(node, `after ${i}`);
        await pause(5);
      }
      t.same(await node.exited, { code: 1, signal: null });
      const elapsedMs = performance.now() - startedAtMs;
      t.ok(elapsedMs < endsWithinMs + MARGIN_MS, `the node ended after ${elapsedMs} ms`);
      const sentences = node.output().match(/^jindou: .*$/gm) ?? [];
      t.match(sentences, [sentence], "standard error");
      t.equal(sentences.length, 1, "one sentence");
      t.match(node.output(), "The node exits because it must stop serving clients");
      const afterFault = [...acknowledged.keys()].filter((name) => name.startsWith("after"));
      t.ok(afterFault.length > 0, "messages were acknowledged after the fault");

      const next = await spawnBroker(t, {}, folder ?? node.dataPath, launch);
      const stored = new Map<string, number>();
      for (let last = -1; stored.size > last; ) {
        last = stored.size;
        const query = `channel_id=group&channel_type=2&from_seq=${last + 1}&limit=500`;
        const { body } = await next.call(`/channel/messages?${query}`);
        for (const { client_msg_no, message_seq } of body.messages)
          stored.set(client_msg_no, message_seq);
      }
      const lost = [...acknowledged].filter(([name, seq]) => stored.get(name) !== seq);
      t.same(lost, [], `all ${acknowledged.size} acknowledged messages are stored`);
      t.ok(await send(next, "again"), "the next start accepts messages");
      t.equal(await next.terminate(), 0);
    },
  );
