// A process with an embedded store, for tests that kill it, limit it or let it compete. Speaks lines of JSON on its standard output.
// Usage: child.ts <folder> send <channels> | send-some <count> | hold

import { createEmbeddedStore } from "../../../src/store/embedded/store.ts";
import { draftOf } from "../../contract/store-bench.ts";

const [folder = "", what = "", argument = "0"] = process.argv.slice(2);

const store = createEmbeddedStore({
  path: folder,
  durability: "process",
  checkpointMs: 20,
  maxTailBytes: 64 * 1024 * 1024,
  maxTailRecords: 500_000,
  segmentBytes: what === "send" ? 256 * 1024 : 64 * 1024 * 1024,
  dedupeWindowS: 86_400,
  retentionS: 0,
  sweepIntervalMs: 1000,
  publisher: { publish() {} },
  clock: Date.now,
  onProblem: (error, what) => say({ problem: what, message: error.message }),
});

function say(line: object): void {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

/** Sends without end, 16 under way per channel; says what was acknowledged. */
async function send(channels: number): Promise<void> {
  const lane = async (id: string, lane: number) => {
    for (let i = 0; ; i++) {
      const clientMsgNo = `${process.pid}-${lane}-${i}`;
      const channel = { id, type: 2 } as const;
      const draft = { ...draftOf({ channel }), clientMsgNo, dedupe: true };
      const { messageSeq } = await store.append(draft);
      say({ id, clientMsgNo, messageSeq });
    }
  };
  const lanes = Array.from({ length: channels * 16 }, (_, i) =>
    lane(`g${i % channels}`, i),
  );
  await Promise.all(lanes);
}

/** Sends messages of 10 KB one after the other; says how each went. */
async function sendSome(count: number): Promise<void> {
  const payload = new Uint8Array(10_000);
  for (let i = 0; i < count; i++)
    try {
      const { messageSeq } = await store.append(draftOf({ payload }));
      say({ messageSeq });
    } catch (error) {
      say({ code: (error as { code: string }).code });
    }
}

/** A group whose members need as much room as the limit has in all. */
async function createGroup(): Promise<void> {
  const flags = { ban: false, disband: false, sendBan: false };
  const info = {
    id: "big",
    type: 2,
    allowStranger: false,
    large: false,
  } as const;
  const uids = Array.from({ length: 8000 }, (_, i) => `member-${i}-${i}`);
  try {
    const created = await store.createChannel({ ...info, ...flags }, uids);
    say({ created });
  } catch (error) {
    const { isSubscriber } = await store.groupFacts("big", uids[0] ?? "");
    say({ groupCode: (error as { code: string }).code, isSubscriber });
  }
}

try {
  await store.start();
  say({ started: process.pid });
  if (what === "send") await send(Number(argument));
  if (what === "send-some") {
    await sendSome(Number(argument));
    await createGroup();
    process.stdin.once("data", async () => {
      await sendSome(3);
      await createGroup();
      await store.close();
      process.exit();
    });
    say({ waiting: true });
  }
  if (what === "hold") setInterval(() => {}, 1000);
} catch (error) {
  say({ refused: (error as Error).message });
  process.exit(1);
}
