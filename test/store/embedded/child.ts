// A process with an embedded store, for tests that kill it, limit it or let it compete. Speaks
// lines of JSON on its standard output.
// Usage: child.ts <folder> send <channels> | stream <progress> | command | send-some <count> | hold
//   | obey <durability> | starved <count>

import fs from "node:fs";
import { syncBuiltinESMExports } from "node:module";
import { createInterface } from "node:readline";
import { STREAM_CONTENT, STREAM_END, STREAM_START } from "../../../src/broker/model.ts";
import { createEmbeddedStore } from "../../../src/store/embedded/store.ts";
import { draftOf } from "../../contract/store-fixture.ts";
import { commandOf } from "../../contract/store-inbox.ts";
import { eventOf } from "../../contract/store-stream-fixture.ts";

const [folder = "", what = "", argument = "0"] = process.argv.slice(2);

/**
 * The name of a pid namespace that it takes for its own: where the machine allows no other, another
 * process is then judged by its heartbeat.
 */
const { JINDOU_TEST_PID_NAMESPACE } = process.env;
if (JINDOU_TEST_PID_NAMESPACE !== undefined) {
  const { readlinkSync } = fs;
  fs.readlinkSync = ((path: fs.PathLike) =>
    path === "/proc/self/ns/pid"
      ? JINDOU_TEST_PID_NAMESPACE
      : readlinkSync(path)) as typeof readlinkSync;
  syncBuiltinESMExports();
}

/**
 * Where the process waits to be stopped and continued, once: it sees that in a jump of the clock.
 */
let pauseAt = "";

function pausePoint(point: string): void {
  if (point !== pauseAt) return;
  pauseAt = "";
  const endMs = performance.now() + 60_000;
  let before = performance.now();
  fs.writeSync(1, `${JSON.stringify({ pausing: point })}\n`);
  for (let now = before; now - before < 2000 && now < endMs; ) {
    before = now;
    now = performance.now();
  }
}

const store = createEmbeddedStore({
  path: folder,
  durability: argument === "disk" ? "disk" : "process",
  ...(what === "obey"
    ? {
        files: {
          writeSync(fd, data, offset, length, position) {
            pausePoint("before the write");
            const count = fs.writeSync(fd, data, offset, length, position);
            pausePoint("after the write");
            return count;
          },
          ftruncateSync: fs.ftruncateSync,
          fdatasync: (fd, done) =>
            fs.fdatasync(fd, (error) => {
              pausePoint("after the sync");
              done(error);
            }),
        },
        databaseWrites: {
          batch(_env, steps, write) {
            pausePoint("before the transaction");
            return write(steps);
          },
          flushed: (env) => env.flushed,
        },
      }
    : {}),
  checkpointMs: what === "obey" ? 1_000_000 : 20,
  maxMemtableBytes: 64 * 1024 * 1024,
  ...(what.startsWith("s") && what !== "send-some" ? { segmentBytes: 256 * 1024 } : {}),
  dedupeWindowS: 86_400,
  retentionS: 0,
  maxChannelMessages: 0,
  sweepIntervalMs: 1000,
  maxStreamBytes: 1_048_576,
  maxActiveStreamBytes: 268_435_456,
  maxInbox: 1_000_000,
  inboxTtlS: 604_800,
  publisher: { publish() {} },
  clock: Date.now,
  onError: (error, what) => say({ problem: what, message: error.message }),
  onLost(error) {
    fs.writeSync(1, `${JSON.stringify({ lost: error.message })}\n`); // before the exit
    process.exit(3);
  },
});

function say(line: object): void {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

/** Resolves when the line is out: it is read even if this process ends now. */
function said(line: object): Promise<void> {
  return new Promise((resolve) => {
    process.stdout.write(`${JSON.stringify(line)}\n`, () => resolve());
  });
}

/** Sends without end, 16 under way per channel; says what was acknowledged. */
async function send(channels: number): Promise<void> {
  const lane = async (id: string, lane: number) => {
    for (let i = 0; ; i++) {
      const clientMsgNo = `${process.pid}-${lane}-${i}`;
      const channel = { id, type: 2 } as const;
      const draft = { ...draftOf({ channel }), clientMsgNo };
      const { messageSeq } = await store.append(draft);
      say({ id, clientMsgNo, messageSeq });
    }
  };
  const lanes = Array.from({ length: channels * 16 }, (_, i) => lane(`g${i % channels}`, i));
  await Promise.all(lanes);
}

/**
 * Sends commands to two users without end, some under way at once, and acknowledges every other
 * copy of the first; says what was answered.
 */
async function command(): Promise<void> {
  const lane = async (lane: number) => {
    for (let i = 0; ; i++) {
      const clientMsgNo = `${process.pid}-${lane}-${i}`;
      const recipients = ["acks", "keeps"];
      const draft = commandOf({ clientMsgNo, recipients });
      const { messageId } = await store.appendCommand(draft);
      say({ clientMsgNo, messageId });
    }
  };
  const acknowledge = async () => {
    for (let afterSeq = 0; ; ) {
      const some = await store.readInbox("acks", afterSeq, ACKED_PAGE);
      afterSeq = some.at(-1)?.inboxSeq ?? afterSeq;
      const seqs = some.map((c) => c.inboxSeq).filter((seq) => seq % 2 === 0);
      await store.acknowledgeCommands("acks", seqs);
      for (const acknowledged of seqs) say({ acknowledged });
      await new Promise(setImmediate);
    }
  };
  await Promise.all([...Array.from({ length: 8 }, (_, i) => lane(i)), acknowledge()]);
}

/** Chunks of one stream, and calls that a producer has under way at once. */
const ACKED_PAGE = { limit: 20, maxBytes: 1_000_000 };
const CHUNKS = 60;
const WINDOW = 7;

/** Streams without end, one after the other, in a channel per lane. `progress` tells of each lane how many events were
 * acknowledged. Like any producer it goes on only when it was answered. */
async function stream(progress: readonly number[]): Promise<void> {
  const post = async (lane: number, count: number) => {
    const n = Math.floor(count / (CHUNKS + 2));
    const i = count % (CHUNKS + 2);
    const type = i === 0 ? STREAM_START : i > CHUNKS ? STREAM_END : STREAM_CONTENT;
    const event = eventOf(type, type === STREAM_CONTENT ? `${i};` : "", {
      channel: { id: `g${lane}`, type: 2 },
      clientMsgNo: `s${n}`,
      eventId: `e${i}`,
    });
    const { verdict } = await store.streamEvent(event);
    await said({ lane, count, verdict });
  };
  const run = async (lane: number, from: number) => {
    for (let next = from; ; next += WINDOW)
      await Promise.all(Array.from({ length: WINDOW }, (_, i) => post(lane, next + i)));
  };
  await Promise.all(progress.map((count, lane) => run(lane, count)));
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

/** Sends with no file descriptor left, then as much with some. */
async function starve(count: number): Promise<void> {
  const fds: number[] = [];
  try {
    for (;;) fds.push(fs.openSync("/dev/null", "r"));
  } catch (error) {
    say({ code: (error as NodeJS.ErrnoException).code });
  }
  await sendSome(count);
  for (const fd of fds) fs.closeSync(fd);
  await sendSome(count);
  process.exit(); // no orderly end: what is acknowledged is in the journal
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

/** Does what lines on standard input say, all at once; says what was answered. */
function obey(): void {
  createInterface(process.stdin).on("line", async (text) => {
    const order = JSON.parse(text) as Record<string, string>;
    pauseAt = order.pauseAt ?? pauseAt;
    const clientMsgNo = order.send ?? order.command ?? "";
    if (order.send !== undefined)
      store.append(draftOf({ clientMsgNo })).then(
        ({ messageSeq }) => say({ clientMsgNo, messageSeq }),
        (error) => say({ clientMsgNo, code: error.code }),
      );
    if (order.command !== undefined) {
      const draft = commandOf({ clientMsgNo, recipients: ["u"] });
      store.appendCommand(draft).then(
        ({ messageId }) => say({ clientMsgNo, messageId }),
        (error) => say({ clientMsgNo, code: error.code }),
      );
    }
  });
}

try {
  await store.start();
  say({ started: process.pid });
  if (what === "send") await send(Number(argument));
  if (what === "stream") await stream(JSON.parse(argument) as number[]);
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
  if (what === "starved") await starve(Number(argument));
  if (what === "command") await command();
  if (what === "obey") obey();
  if (what === "hold") setInterval(() => {}, 1000);
} catch (error) {
  say({ refused: (error as Error).message });
  process.exit(1);
}
