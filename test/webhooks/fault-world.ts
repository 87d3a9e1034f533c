// Senders and checks for the fault tests of webhooks. They record which messages were acknowledged,
// and check whether a receiver has got the events of these messages as the documentation promises.

import { setTimeout as pause } from "node:timers/promises";
import type { Test } from "tap";
import { type Broker, textPayload } from "../support/broker.ts";
import type { ReceivedEvent, ReceivedRequest, Receiver } from "./receiver.ts";

const CHANNELS = ["ann", "ben", "cat"];
const RETRY_MS = 20;
/** Pause between two messages, so that a receiver is not minutes behind after a fault of seconds. */
const PAUSE_MS = 5;
/** Time after which a sender no longer waits for a node, which may be frozen. */
const MAX_CALL_MS = 2000;
const HISTORY_LIMIT = 500;

type Node = Pick<Broker, "call">;

/** Turns the feed on and creates a webhook for the receiver. Returns the id of the webhook. */
export async function subscribe(
  { call }: Node,
  receiver: Receiver,
  settings: object = {},
): Promise<string> {
  await call("/events/feed", { feed: "on" });
  const batch = { max: 10, waitMs: 0 };
  const webhook = { url: receiver.url, types: ["message.stored"], batch, ...settings };
  const { status, body } = await call("/webhooks", webhook);
  if (status !== 201) throw new Error(`no webhook: ${JSON.stringify(body)}`);
  receiver.secret = body.secret;
  return body.id;
}

/** Sends one message to each channel. Adds the ids of the acknowledged messages to `sent`. */
export async function sendOnce(node: Node, sent: Set<number>): Promise<void> {
  await Promise.all(CHANNELS.map((channelId) => send(node, channelId, sent)));
}

/**
 * Sends messages to all channels until `isEnded` returns true or the test ends. Adds the ids of the
 * acknowledged messages to `sent`. Calls may fail.
 */
export async function sendUntil(
  t: Test,
  {
    node,
    sent,
    isEnded,
  }: {
    readonly node: () => Node;
    readonly sent: Set<number>;
    readonly isEnded: () => boolean;
  },
): Promise<void> {
  let isTestOver = false;
  t.teardown(() => {
    isTestOver = true;
  });
  await Promise.all(
    CHANNELS.map(async (channelId) => {
      while (!isEnded() && !isTestOver) {
        const sending = send(node(), channelId, sent).catch(() => false);
        const isSent = await Promise.race([sending, pause(MAX_CALL_MS, false, { ref: false })]);
        await pause(isSent ? PAUSE_MS : RETRY_MS);
      }
    }),
  );
}

async function send({ call }: Node, channelId: string, sent: Set<number>): Promise<boolean> {
  const { status, body } = await call("/message/send", {
    ...{ from_uid: "bob", channel_id: channelId, channel_type: 1, payload: textPayload("x") },
  });
  if (status === 200) sent.add(body.message_id);
  return status === 200;
}

/** Returns the ids of all messages in the history of the channels. */
export async function historyOf({ call }: Node): Promise<ReadonlySet<number>> {
  const ids = new Set<number>();
  for (const channelId of CHANNELS)
    for (let fromSeq = 1, more = 1; more === 1; ) {
      const query = `uid=bob&channel_id=${channelId}&channel_type=1&order=asc&limit=${HISTORY_LIMIT}`;
      const { body } = await call(`/channel/messages?${query}&from_seq=${fromSeq}&to_seq=0`);
      for (const { message_id: id, message_seq: seq } of body.messages) {
        ids.add(id);
        fromSeq = seq + 1;
      }
      more = body.more;
    }
  return ids;
}

export function hasAll(receiver: Receiver, ids: ReadonlySet<number>): boolean {
  const { events } = receiver;
  if (events.length < ids.size) return false;
  const received = new Set(events.map(({ data }) => data.message_id));
  return [...ids].every((id) => received.has(id));
}

/**
 * Returns the faults in the received requests: an event or a batch that differs between two
 * requests, or an event that is not in the order of its channel. If the store has lost messages,
 * `kept` contains the ids of the remaining messages.
 */
export function problems(
  requests: readonly ReceivedRequest[],
  kept?: ReadonlySet<number>,
): readonly string[] {
  const eventsById = new Map<string, ReceivedEvent>();
  const bodies = new Map<string, string>();
  const newest = new Map<string, number>();
  const wrong: string[] = [];
  for (const { id, body } of requests) {
    // After a loss, new events can reuse the numbers of lost events, and thus the id of a batch.
    if (kept === undefined && (bodies.get(id) ?? body) !== body)
      wrong.push(`the batch ${id} has changed`);
    bodies.set(id, body);
  }
  const all = requests.flatMap(({ events }) => events);
  for (const event of all.filter(({ type }) => type === "message.stored")) {
    const earlier = eventsById.get(event.id);
    if (earlier !== undefined) {
      if (JSON.stringify(earlier) !== JSON.stringify(event)) wrong.push(`${event.id} has changed`);
      continue;
    }
    eventsById.set(event.id, event);
    const { channel_key: key, message_seq: seq, message_id: id } = event.data;
    if (kept !== undefined && !kept.has(id)) continue;
    const last = newest.get(key) ?? 0;
    if (kept === undefined ? seq !== last + 1 : seq <= last)
      wrong.push(`${key}: ${seq} follows ${last}`);
    newest.set(key, seq);
  }
  return wrong;
}

/** Returns the sum of a metric of webhooks over all label values that the pattern matches. */
export async function metric({ call }: Node, name: string, labels = /.*/): Promise<number> {
  const { body } = await call("/metrics");
  return String(body)
    .split("\n")
    .filter((line) => line.startsWith(`jindou_webhook_${name}{`) && labels.test(line))
    .reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(" "))), 0);
}

/** Resolves when the condition is true. */
export async function until(condition: () => Promise<boolean>): Promise<void> {
  while (!(await condition())) await pause(RETRY_MS);
}
