// How many events per second does a webhook deliver, and what do the event feed and a receiver that
// hangs cost the senders? The baseline of the deliveries is a client that posts prepared bodies of
// 100 events with 8 requests in flight. For deliveries, each call sends 100 messages, so that the
// senders are not the limit. The rows about sends compare two nodes of the same build.

import { createServer, type Server as HttpServer } from "node:http";
import type { AddressInfo } from "node:net";
import { Agent, request } from "undici";
import { PERSON_CHANNEL } from "../src/broker/model.ts";
import { Backend } from "./support/backend.ts";
import type { Bench, Benchmark, Row, Sample, Subject } from "./support/benchmark.ts";
import { freshMessageNumber, httpRequest, sendBody } from "./support/frames.ts";
import { compileLoad, LoadClient } from "./support/load.ts";
import { alternate } from "./support/rounds.ts";
import { type Server, startBroker } from "./support/servers.ts";
import { row } from "./support/stats.ts";

const CHANNELS = 100;
const BATCH = 100;
const MESSAGES = 30_000;
const QUICK_MESSAGES = 1000;
const SENDERS = 64;
/** Number of calls in flight, each with a message to every user. */
const BATCH_SENDERS = 4;
const IN_FLIGHT = 8;
const EVENT = `{"id":"17-000000000001-4398046511105","type":"message.stored","timestamp":"2026-11-24T00:00:00.000Z","data":{"message_id":4398046511105,"message_seq":1,"payload":"${"x".repeat(272)}"}}`;
const BODY = `{"type":"batch","data":{"events":[${new Array(BATCH).fill(EVENT).join(",")}]}}`;

/** A server that counts the events of webhooks. */
interface Receiver {
  readonly url: string;
  /** Numbers of events that have arrived in live deliveries and in replays. */
  readonly live: number;
  readonly replayed: number;
  /** Resolves when the condition is true. */
  until(condition: () => boolean): Promise<void>;
  close(): void;
}

export const webhooks: Benchmark = {
  name: "webhooks",
  question: "a webhook for each stored message of 200 bytes, batches of 100, ordered by channel",
  isPinned: true,

  async run(bench) {
    const [live, replayed] = await deliveries(bench);
    return [live, replayed, ...(await sends(bench))];
  },
};

async function deliveries(bench: Bench): Promise<readonly [Row, Row]> {
  const samples = await alternate(bench, (subject) =>
    subject.kind === "raw" ? preparedSample(bench) : deliverySample(bench, subject),
  );
  const rowOf = (title: string, value: (figures: Figures) => number) =>
    row({ title, unit: "events/s" }, bench.subjects, [
      samples[0].map((figures): Sample => ({ value: value(figures) })),
      samples[1].map((figures): Sample => ({ value: value(figures) })),
    ]);
  return [
    rowOf(`${CHANNELS} channels, while the messages are sent`, ({ live }) => live),
    rowOf("a replay, while nothing is sent", ({ replayed }) => replayed),
  ];
}

interface Figures {
  /** Events per second. */
  readonly live: number;
  readonly replayed: number;
}

async function deliverySample(
  { workbench, plan }: Bench,
  subject: Extract<Subject, { kind: "broker" }>,
): Promise<Figures> {
  const server = await startFed(workbench, subject);
  const receiver = await startReceiver();
  const id = await createWebhook(server, receiver.url);
  const backend = new Backend(server.apiPort);
  const count = plan.isQuick ? QUICK_MESSAGES : MESSAGES;
  const channel = { id: "user", type: PERSON_CHANNEL } as const;
  const text = sendBody({ channel, fromUid: "bob", clientMsgNo: undefined });
  const { payload } = JSON.parse(text);
  const subscribers = Array.from({ length: CHANNELS }, (_, at) => `user-${at}`);
  let sent = 0;
  const send = async () => {
    for (; sent < count; ) {
      sent += CHANNELS;
      const body = { from_uid: "bob", subscribers, payload };
      const { fail_uids } = JSON.parse(await backend.post("/message/sendbatch", body));
      if (fail_uids.length > 0) throw new Error("messages were not sent");
    }
  };
  const live = await rateOf(count, async () => {
    await Promise.all(Array.from({ length: BATCH_SENDERS }, send));
    await receiver.until(() => receiver.live >= count);
  });
  const replayed = await rateOf(count, async () => {
    await backend.post(`/webhooks/${id}/replay`, { after: "oldest" });
    await receiver.until(() => receiver.replayed >= count);
  });
  backend.close();
  receiver.close();
  await server.stop();
  return { live, replayed };
}

async function preparedSample({ plan }: Bench): Promise<Figures> {
  const receiver = await startReceiver();
  const dispatcher = new Agent({ connections: IN_FLIGHT, pipelining: 1 });
  const count = plan.isQuick ? QUICK_MESSAGES : MESSAGES;
  let posted = 0;
  const post = async () => {
    for (; posted < count; ) {
      posted += BATCH;
      const headers = { "content-type": "application/json" };
      const reply = await request(receiver.url, {
        ...{ method: "POST", headers, body: BODY, dispatcher },
      });
      await reply.body.dump();
    }
  };
  const rate = await rateOf(count, async () => {
    await Promise.all(Array.from({ length: IN_FLIGHT }, post));
    await receiver.until(() => receiver.live >= count);
  });
  await dispatcher.destroy();
  receiver.close();
  return { live: rate, replayed: rate };
}

async function rateOf(count: number, work: () => Promise<void>): Promise<number> {
  const startedMs = performance.now();
  await work();
  return (count * 1000) / (performance.now() - startedMs);
}

/** Measures how much the feed, and a webhook whose receiver hangs, slow down message senders. */
async function sends({ workbench, plan, subjects: [, ours] }: Bench): Promise<readonly Row[]> {
  if (ours.kind === "raw") throw new Error("the raw server has no event feed");
  const load = new LoadClient(workbench, await compileLoad());
  const off = await startBroker(workbench, ours);
  const on = await startFed(workbench, ours);
  const hanging = await startFed(workbench, ours);
  const receiver = await startReceiver(true);
  await createWebhook(hanging, receiver.url);
  const samples = new Map<Server, Sample[]>([off, on, hanging].map((server) => [server, []]));
  for (let round = 0; round < plan.rounds; round++)
    for (const [server, measured] of samples) {
      const channel = { id: "alice", type: PERSON_CHANNEL } as const;
      const text = sendBody({ channel, fromUid: "bob", clientMsgNo: freshMessageNumber() });
      const sample = await load.request({
        ...{ kind: "http", port: server.apiPort, pid: server.pid },
        ...{ connections: SENDERS, depth: 1, message: httpRequest("/message/send", text), plan },
      });
      measured.push(sample);
    }
  receiver.close();
  for (const server of samples.keys()) await server.stop();
  const of = (server: Server) => samples.get(server) ?? [];
  const p99 = (server: Server) =>
    of(server).map(({ latency }): Sample => ({ value: latency?.p99 ?? Number.NaN }));
  const names = [{ name: "feed off" }, { name: "feed on" }] as const;
  const hangs = [{ name: "no webhook" }, { name: "a receiver that hangs" }] as const;
  return [
    row(
      { title: "sends with the feed on", unit: "requests/s", target: ratio(0.93) },
      ...[names, [of(off), of(on)] as const],
    ),
    row(
      {
        title: "99 of 100 sends beside a receiver that hangs",
        ...{ unit: "µs", target: { kind: "slowdown", atMost: 1.2 } },
      },
      ...[hangs, [p99(on), p99(hanging)] as const],
    ),
  ];
}

const ratio = (atLeast: number) => ({ kind: "ratio", atLeast }) as const;

function startFed(
  workbench: Bench["workbench"],
  subject: Extract<Subject, { kind: "broker" }>,
): Promise<Server> {
  return startBroker(workbench, subject, undefined, { JINDOU_EVENTS_FEED: "on" });
}

async function createWebhook({ apiPort }: Server, url: string): Promise<string> {
  const response = await fetch(`http://127.0.0.1:${apiPort}/webhooks`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ url, types: ["message.stored"], batch: { max: BATCH, waitMs: 200 } }),
  });
  const { id, error } = (await response.json()) as { readonly id: string; readonly error?: string };
  if (response.status !== 201) throw new Error(`The webhook was not created: ${error}`);
  return id;
}

/** Starts a receiver that replies with 204, or never replies if `isHanging`. */
async function startReceiver(isHanging = false): Promise<Receiver> {
  let live = 0;
  let replayed = 0;
  const waiting = new Set<() => void>();
  const server: HttpServer = createServer((incoming, response) => {
    const pieces: Buffer[] = [];
    incoming.on("data", (piece: Buffer) => pieces.push(piece));
    incoming.on("end", () => {
      if (isHanging) return;
      const { length } = JSON.parse(Buffer.concat(pieces).toString()).data.events;
      if (incoming.headers["webhook-replay"] === "1") replayed += length;
      else live += length;
      response.writeHead(204).end();
      for (const check of waiting) check();
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/hook`,
    get live() {
      return live;
    },
    get replayed() {
      return replayed;
    },
    until: (condition) =>
      new Promise((resolve) => {
        const check = () => {
          if (!condition()) return;
          waiting.delete(check);
          resolve();
        };
        waiting.add(check);
        check();
      }),
    close() {
      server.closeAllConnections();
      server.close();
    },
  };
}
