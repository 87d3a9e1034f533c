// A process with an embedded store, for tests that kill it, limit it or start several of them. It
// prints lines of JSON on its standard output.
//
// Usage: child.ts <folder> <mode> [<argument>], where mode and argument are one of
//   send <channels>, stream <progress>, log <progress>, command, send-some <count>, starved <count>,
//   full-database <count>, obey <durability>, die <commits>, hold

import fs from "node:fs";
import { syncBuiltinESMExports } from "node:module";
import { createInterface } from "node:readline";
import { STREAM_CONTENT, STREAM_END, STREAM_START } from "../../../src/broker/model.ts";
import { createEmbeddedStore } from "../../../src/store/embedded/store.ts";
import { appendOf, free, draftOf as logDraftOf } from "../../contract/log-fixture.ts";
import { draftOf } from "../../contract/store-fixture.ts";
import { commandOf } from "../../contract/store-inbox.ts";
import { eventOf } from "../../contract/store-stream-fixture.ts";

const [folder = "", mode = "", argument = "0"] = process.argv.slice(2);

/**
 * Name of a pid namespace that this process pretends to be in, for machines that do not allow new
 * namespaces. Other processes then judge this process by its heartbeat.
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
 * Point at which the process waits once to be stopped and continued. The process continues when it
 * detects that the clock has jumped.
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

/** Number of commits after which the mode `die` kills the process. */
let commitsLeft = mode === "die" ? Number(argument) : Infinity;

/** Kills this process at a random moment of the commit that has just been handed to lmdb. */
function dieInCommit(): void {
  const endMs = performance.now() + Math.random() * 3;
  while (performance.now() < endMs);
  process.kill(process.pid, "SIGKILL");
}

const store = createEmbeddedStore({
  path: folder,
  durability: argument === "disk" ? "disk" : "process",
  ...(mode === "obey"
    ? {
        files: {
          writeSync(fd, data, offset, length, position) {
            pausePoint("before the write");
            const count = fs.writeSync(fd, data, offset, length, position);
            pausePoint("after the write");
            return count;
          },
          ftruncateSync: fs.ftruncateSync,
          fsyncSync: fs.fsyncSync,
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
  ...(mode === "die"
    ? {
        databaseWrites: {
          batch(_env, steps, write) {
            const committed = write(steps);
            if (--commitsLeft <= 0) dieInCommit();
            return committed;
          },
          flushed: (env) => env.flushed,
        },
      }
    : {}),
  checkpointMs: ["obey", "send-some", "full-database"].includes(mode) ? 1_000_000 : 20,
  maxMemtableBytes: 64 * 1024 * 1024,
  ...(mode.startsWith("s") && mode !== "send-some" ? { segmentBytes: 256 * 1024 } : {}),
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
  onError: (error, what) => print({ problem: what, message: error.message }),
  onLost(error) {
    // Synchronous, because the process exits now.
    fs.writeSync(1, `${JSON.stringify({ lost: error.message })}\n`);
    process.exit(3);
  },
});

function print(line: object): void {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

/**
 * Prints a line and waits until it is written, so that it is read even if this process is then
 * killed.
 */
function printAndFlush(line: object): Promise<void> {
  return new Promise((resolve) => {
    process.stdout.write(`${JSON.stringify(line)}\n`, () => resolve());
  });
}

/** Sends messages without end, 16 at a time per channel. Prints each acknowledged message. */
async function send(channels: number): Promise<void> {
  const runWorker = async (id: string, worker: number) => {
    for (let i = 0; ; i++) {
      const clientMsgNo = `${process.pid}-${worker}-${i}`;
      const channel = { id, type: 2 } as const;
      const draft = { ...draftOf({ channel }), clientMsgNo };
      const { messageSeq } = await store.append(draft);
      print({ id, clientMsgNo, messageSeq });
    }
  };
  const workers = Array.from({ length: channels * 16 }, (_, i) => runWorker(`g${i % channels}`, i));
  await Promise.all(workers);
}

/**
 * Sends commands to two users without end, several at a time, and acknowledges every other copy of
 * the first user. Prints each result.
 */
async function command(): Promise<void> {
  const runWorker = async (worker: number) => {
    for (let i = 0; ; i++) {
      const clientMsgNo = `${process.pid}-${worker}-${i}`;
      const recipients = ["acks", "keeps"];
      const draft = commandOf({ clientMsgNo, recipients });
      const { messageId } = await store.appendCommand(draft);
      print({ clientMsgNo, messageId });
    }
  };
  const acknowledge = async () => {
    for (let afterSeq = 0; ; ) {
      const commands = await store.readInbox("acks", afterSeq, ACKED_PAGE);
      afterSeq = commands.at(-1)?.inboxSeq ?? afterSeq;
      const seqs = commands.map((c) => c.inboxSeq).filter((seq) => seq % 2 === 0);
      await store.acknowledgeCommands("acks", seqs);
      for (const acknowledged of seqs) print({ acknowledged });
      await new Promise(setImmediate);
    }
  };
  await Promise.all([...Array.from({ length: 8 }, (_, i) => runWorker(i)), acknowledge()]);
}

const ACKED_PAGE = { limit: 20, maxBytes: 1_000_000 };
/** Number of content events of one stream. */
const CHUNKS = 60;
/** Number of calls that a producer has in progress at once. */
const WINDOW = 7;

/**
 * Posts streams without end, one after the other, in one channel per worker. `progress` contains
 * the number of acknowledged events of each worker. A worker continues only after its calls have
 * returned, like any producer.
 */
async function stream(progress: readonly number[]): Promise<void> {
  const post = async (worker: number, count: number) => {
    const n = Math.floor(count / (CHUNKS + 2));
    const i = count % (CHUNKS + 2);
    const type = i === 0 ? STREAM_START : i > CHUNKS ? STREAM_END : STREAM_CONTENT;
    const event = eventOf(type, type === STREAM_CONTENT ? `${i};` : "", {
      channel: { id: `g${worker}`, type: 2 },
      clientMsgNo: `s${n}`,
      eventId: `e${i}`,
    });
    const { verdict } = await store.streamEvent(event);
    await printAndFlush({ worker, count, verdict });
  };
  const runWorker = async (worker: number, from: number) => {
    for (let next = from; ; next += WINDOW)
      await Promise.all(Array.from({ length: WINDOW }, (_, i) => post(worker, next + i)));
  };
  await Promise.all(progress.map((count, worker) => runWorker(worker, count)));
}

/**
 * Appends to one log per worker without end, several at a time. `progress` contains the number of
 * acknowledged appends of each worker. The next appends may repeat appends that were not answered.
 */
async function log(progress: readonly number[]): Promise<void> {
  const append = async (worker: number, count: number) => {
    const producer = { id: "worker", epoch: 0, number: count };
    const { verdict } = await store.appendLog(
      free(`w${worker}`),
      appendOf([`${count};`], { producer }),
    );
    await printAndFlush({ worker, count, verdict });
  };
  const runWorker = async (worker: number, from: number) => {
    await store.createLog(free(`w${worker}`), logDraftOf());
    for (let next = from; ; next += WINDOW)
      await Promise.all(Array.from({ length: WINDOW }, (_, i) => append(worker, next + i)));
  };
  await Promise.all(progress.map((count, worker) => runWorker(worker, count)));
}

/** Sends messages of 10 KB one after the other. Prints each result. */
async function sendSome(count: number): Promise<void> {
  const payload = new Uint8Array(10_000);
  for (let i = 0; i < count; i++)
    try {
      const { messageSeq } = await store.append(draftOf({ payload }));
      print({ messageSeq });
    } catch (error) {
      print({ code: (error as { code: string }).code });
    }
}

/**
 * Sends messages while no file descriptor is free, and the same number again when some are free.
 */
async function starve(count: number): Promise<void> {
  const fds: number[] = [];
  try {
    for (;;) fds.push(fs.openSync("/dev/null", "r"));
  } catch (error) {
    print({ code: (error as NodeJS.ErrnoException).code });
  }
  await sendSome(count);
  for (const fd of fds) fs.closeSync(fd);
  await sendSome(count);
  process.exit(); // not an orderly shutdown: acknowledged messages are only in the WAL
}

/** Creates a group whose members need more space than the limit allows. */
async function createGroup(): Promise<void> {
  const flags = { ban: false, disband: false, sendBan: false, clientEvents: true };
  const info = {
    id: "big",
    type: 2,
    allowStranger: false,
    large: false,
  } as const;
  const uids = Array.from({ length: 8000 }, (_, i) => `member-${i}-${i}`);
  const created = await store.createChannel({ ...info, ...flags }, uids);
  print({ created });
}

/** Stores messages, commands, streams and groups, and removes groups, until the process dies. */
async function work(): Promise<void> {
  const flags = {
    ...{ allowStranger: false, large: false, ban: false, disband: false, sendBan: false },
    clientEvents: true,
  };
  for (let round = 0; ; round++) {
    const name = `${process.pid}-${round}`;
    const group = { id: name, type: 2, ...flags } as const;
    const uids = Array.from({ length: round % 200 }, (_, i) => `u${i}`);
    const payload = new Uint8Array((round % 40) * 500);
    const channel = { id: `g${round % 30}`, type: 2 } as const;
    const event = (type: string, eventId: string) =>
      eventOf(type, "text ".repeat(round % 100), { channel, clientMsgNo: name, eventId });
    await Promise.all([
      ...Array.from({ length: 20 }, () => store.append(draftOf({ channel, payload }))),
      store.createChannel(group, uids),
      store.appendCommand(commandOf({ clientMsgNo: name, recipients: uids })),
    ]);
    await store.streamEvent(event(STREAM_START, "start"));
    await store.streamEvent(event(STREAM_CONTENT, "content"));
    await store.streamEvent(event(STREAM_END, "end"));
    await store.removeSubscribers(group, uids.slice(0, round % 100), "permanent");
  }
}

/** Executes the orders from standard input concurrently. Prints the result of each order. */
function obey(): void {
  createInterface(process.stdin).on("line", async (text) => {
    const order = JSON.parse(text) as Record<string, string>;
    pauseAt = order.pauseAt ?? pauseAt;
    const clientMsgNo = order.send ?? order.command ?? "";
    if (order.send !== undefined)
      store.append(draftOf({ clientMsgNo })).then(
        ({ messageSeq }) => print({ clientMsgNo, messageSeq }),
        (error) => print({ clientMsgNo, code: error.code }),
      );
    if (order.command !== undefined) {
      const draft = commandOf({ clientMsgNo, recipients: ["u"] });
      store.appendCommand(draft).then(
        ({ messageId }) => print({ clientMsgNo, messageId }),
        (error) => print({ clientMsgNo, code: error.code }),
      );
    }
  });
}

try {
  await store.start();
  print({ started: process.pid });
  if (mode === "send") await send(Number(argument));
  if (mode === "stream") await stream(JSON.parse(argument) as number[]);
  if (mode === "log") await log(JSON.parse(argument) as number[]);
  if (mode === "send-some") {
    await sendSome(Number(argument));
    process.stdin.once("data", async () => {
      await sendSome(3);
      await store.close();
      process.exit();
    });
    print({ waiting: true });
  }
  if (mode === "full-database") {
    await sendSome(Number(argument));
    await createGroup();
  }
  if (mode === "starved") await starve(Number(argument));
  if (mode === "command") await command();
  if (mode === "die") await work();
  if (mode === "obey") obey();
  if (mode === "hold") setInterval(() => {}, 1000);
} catch (error) {
  print({ refused: (error as Error).message });
  process.exit(1);
}
