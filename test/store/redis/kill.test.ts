// kill -9 of a node while it sends commands: retries on another node recognise the commands that
// the killed node had acknowledged, and complete those that it had begun. Real processes, real
// Redis.

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import t, { type Test } from "tap";
import { BUCKETS } from "../../../src/broker/log-frame.ts";
import { commandOf } from "../../contract/store-inbox.ts";
import { TYPESCRIPT_ARGS, tieToParent } from "../../support/child.ts";
import { Random } from "../../support/random.ts";
import { startRedis, startRedisCluster } from "../../support/redis.ts";
import { freshPrefix, type InboxBench, PAGE, startInbox } from "./inbox-bench.ts";

const CHILD = fileURLToPath(new URL("inbox-child.ts", import.meta.url));
const KILLS = 3;
const RECIPIENTS = 300;
const USERS = Array.from({ length: RECIPIENTS }, (_, i) => `u${i}`);
const ACKNOWLEDGING_USER = `u${RECIPIENTS - 1}`;

/** A line that a node printed. */
interface Line {
  readonly started?: number;
  readonly sent?: string;
  readonly channel?: string;
  readonly answered?: string;
  readonly messageId?: number;
  readonly problem?: string;
}

/**
 * Starts a node, kills it after `answers` acknowledged commands, and returns all lines that it
 * printed.
 */
async function runUntilKilled(
  t: Test,
  args: readonly string[],
  answers: number,
): Promise<readonly Line[]> {
  const node = [...TYPESCRIPT_ARGS, CHILD, ...args];
  const child: ChildProcess = spawn(...tieToParent(process.execPath, node), {
    stdio: ["ignore", "pipe", "inherit"],
  });
  t.teardown(() => child.kill("SIGKILL"));
  if (child.stdout === null) throw new Error("the child process has no standard output");
  const lines: Line[] = [];
  let answered = 0;
  const reader = createInterface(child.stdout);
  reader.on("line", (text) => {
    if (!text.endsWith("}")) return; // truncated by the kill
    const line = JSON.parse(text) as Line;
    lines.push(line);
    if (line.answered !== undefined && ++answered === answers) child.kill("SIGKILL");
  });
  await once(reader, "close");
  return lines;
}

/** Returns the number of pending commands in all buckets. */
const pendingCommands = async ({ link }: InboxBench): Promise<number> => {
  const counts = await Promise.all(
    Array.from({ length: BUCKETS }, (_, bucket) =>
      link.call("xlen", link.keys.bucket("commands", bucket)),
    ),
  );
  return counts.reduce<number>((sum, count) => sum + Number(count), 0);
};

async function retryAfterKills(t: Test, url: string): Promise<void> {
  const prefix = freshPrefix();
  const random = new Random(7);
  const lines: Line[] = [];
  for (let kill = 0; kill < KILLS; kill++) {
    const args = [url, prefix, `n${kill}`, `${RECIPIENTS}`];
    const answers = 1 + random.below(40);
    lines.push(...(await runUntilKilled(t, args, answers)));
  }
  t.same(
    lines.flatMap(({ problem }) => problem ?? []),
    [],
  );
  const bench = await startInbox(t, { url, prefix });
  bench.time.nowMs = Date.now();
  t.ok((await pendingCommands(bench)) > 0, "some commands are pending");
  const acknowledged = await bench.inbox.readInbox(ACKNOWLEDGING_USER, 0, PAGE);
  const seqs = acknowledged.map(({ inboxSeq }) => inboxSeq);
  t.equal(await bench.inbox.acknowledgeCommands(ACKNOWLEDGING_USER, seqs), seqs.length);

  const sent = lines.filter((line) => line.sent !== undefined);
  const firsts = new Map(lines.map((line) => [line.answered, line.messageId]));
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
  t.equal(await pendingCommands(bench), 0);

  const sentNos = sent.map((line) => line.sent ?? "").toSorted();
  const incomplete: string[] = [];
  for (const uid of USERS) {
    const copies = await bench.inbox.readInbox(uid, 0, PAGE);
    const earlier = uid === ACKNOWLEDGING_USER ? acknowledged : [];
    const nos = [...earlier, ...copies].map(({ message }) => message.clientMsgNo);
    if (JSON.stringify(nos.toSorted()) !== JSON.stringify(sentNos)) incomplete.push(uid);
  }
  t.same(incomplete, [], "every user has every command once");
}

t.test("a retry completes the commands of a killed node on one Redis server", async (t) =>
  retryAfterKills(t, (await startRedis(t)).url),
);

t.test("a retry completes the commands of a killed node on a Redis Cluster", async (t) =>
  retryAfterKills(t, (await startRedisCluster(t)).url),
);
