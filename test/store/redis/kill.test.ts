// kill -9 of a node in the middle of commands: whoever retries finds what it answered and finishes
// what it began. Real processes, real Redis.

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import t, { type Test } from "tap";
import { BUCKETS } from "../../../src/redis/keys.ts";
import { commandOf } from "../../contract/store-inbox.ts";
import { TYPESCRIPT_ARGS, tieToParent } from "../../support/child.ts";
import { Random } from "../../support/random.ts";
import { startRedis, startRedisCluster } from "../../support/redis.ts";
import { freshPrefix, type InboxBench, PAGE, startInbox } from "./inbox-bench.ts";

const CHILD = fileURLToPath(new URL("inbox-child.ts", import.meta.url));
const KILLS = 3;
const RECIPIENTS = 300;
const USERS = Array.from({ length: RECIPIENTS }, (_, i) => `u${i}`);
const ACKED = `u${RECIPIENTS - 1}`;

interface Line {
  readonly started?: number;
  readonly sent?: string;
  readonly channel?: string;
  readonly answered?: string;
  readonly messageId?: number;
  readonly problem?: string;
}

/** Starts a node, lets it answer `answers` commands and kills it; gives back all it said. */
async function killedNode(
  t: Test,
  args: readonly string[],
  answers: number,
): Promise<readonly Line[]> {
  const node = [...TYPESCRIPT_ARGS, CHILD, ...args];
  const child: ChildProcess = spawn(...tieToParent(process.execPath, node), {
    stdio: ["ignore", "pipe", "inherit"],
  });
  t.teardown(() => child.kill("SIGKILL"));
  if (child.stdout === null) throw new Error("no output");
  const lines: Line[] = [];
  let answered = 0;
  const reader = createInterface(child.stdout);
  reader.on("line", (text) => {
    if (!text.endsWith("}")) return; // cut off by the kill
    const line = JSON.parse(text) as Line;
    lines.push(line);
    if (line.answered !== undefined && ++answered === answers) child.kill("SIGKILL");
  });
  await once(reader, "close");
  return lines;
}

const unfinished = async ({ link }: InboxBench): Promise<number> => {
  const counts = await Promise.all(
    Array.from({ length: BUCKETS }, (_, bucket) =>
      link.call("xlen", link.keys.bucket("commands", bucket)),
    ),
  );
  return counts.reduce<number>((sum, count) => sum + Number(count), 0);
};

async function killed(t: Test, url: string): Promise<void> {
  const prefix = freshPrefix();
  const random = new Random(7);
  const said: Line[] = [];
  for (let kill = 0; kill < KILLS; kill++) {
    const args = [url, prefix, `n${kill}`, `${RECIPIENTS}`];
    const answers = 1 + random.below(40);
    said.push(...(await killedNode(t, args, answers)));
  }
  t.same(
    said.flatMap(({ problem }) => problem ?? []),
    [],
  );
  const bench = await startInbox(t, { url, prefix });
  bench.time.nowMs = Date.now();
  t.ok((await unfinished(bench)) > 0, "some were half done");
  const acked = await bench.inbox.readInbox(ACKED, 0, PAGE);
  const seqs = acked.map((c) => c.inboxSeq);
  t.equal(await bench.inbox.acknowledgeCommands(ACKED, seqs), seqs.length);

  const sent = said.filter((line) => line.sent !== undefined);
  const firsts = new Map(said.map((line) => [line.answered, line.messageId]));
  const retries = sent.map(async ({ sent = "", channel = "" }) => {
    const { messageId, duplicate } = await bench.inbox.appendCommand(
      commandOf({
        ...{ clientMsgNo: sent, channel: { id: channel, type: 2 } },
        ...{ recipients: USERS },
      }),
    );
    const first = firsts.get(sent);
    if (first !== undefined)
      t.same({ messageId, duplicate }, { messageId: first, duplicate: true });
  });
  await Promise.all(retries);
  t.equal(await unfinished(bench), 0);

  const all = sent.map((line) => line.sent ?? "").toSorted();
  const wrong: string[] = [];
  for (const uid of USERS) {
    const has = await bench.inbox.readInbox(uid, 0, PAGE);
    const before = uid === ACKED ? acked : [];
    const nos = [...before, ...has].map((c) => c.message.clientMsgNo);
    if (JSON.stringify(nos.toSorted()) !== JSON.stringify(all)) wrong.push(uid);
  }
  t.same(wrong, [], "each has every command once");
}

t.test("one server", async (t) => killed(t, (await startRedis(t)).url));

t.test("a Cluster", async (t) => killed(t, (await startRedisCluster(t)).url));
