// Appends messages in batches, to save calls. A batch is one call of the append script, for
// messages on one server (on a Redis Cluster: in one bucket) that were queued in the same turn of
// the event loop, or while earlier batches were in flight. A message must never overtake an earlier
// one of the same origin in its channel, even if a call fails.

import { BrokerError } from "../../../broker/errors.ts";
import type { MessageDraft } from "../../../broker/ports.ts";
import { type Arg, loadScript } from "../../../redis/script.ts";
import type { RedisStorePorts } from "../ports.ts";
import {
  AppendCall,
  type AppendReply,
  isAnyStored,
  type Outcome,
  readReply,
} from "./append-call.ts";
import type { ChannelNames } from "./channel-names.ts";
import { permissionTables } from "./permission-tables.ts";

const lua = (name: string) => new URL(`../lua/${name}.lua`, import.meta.url);
const APPEND = loadScript(
  lua("append"),
  permissionTables(),
  ...["channel_record", "permission", "dedupe", "place"].map(lua),
);

/** Limits of one batch. A batch with a single message may be larger than `MAX_BYTES`. */
const MAX_MESSAGES = 32;
const MAX_BYTES = 256 * 1024;
const MAX_BATCHES_IN_FLIGHT = 2;
/** Total size of queued and in-flight messages at which further messages are rejected. */
const MAX_PENDING_BYTES = 64 * 1024 * 1024;

interface Batch {
  readonly calls: readonly AppendCall[];
  readonly orders: ReadonlySet<string>;
}

interface Queue {
  waiting: AppendCall[];
  readonly inFlight: Set<Batch>;
}

type AppendsPorts = Pick<RedisStorePorts, "link" | "clock" | "limits" | "waitForReplicas">;

export class Appends {
  readonly #ports: AppendsPorts;
  readonly #queues = new Map<number, Queue>();
  readonly #ready = new Set<Queue>();
  #bytes = 0;
  #turn: NodeJS.Immediate | undefined;

  constructor(ports: AppendsPorts) {
    this.#ports = ports;
  }

  /** Queues a message. May throw `overloaded`, `unavailable`, or `bad_request` for `expire`. */
  append(names: ChannelNames, draft: MessageDraft): Promise<Outcome> {
    if (this.#bytes >= MAX_PENDING_BYTES) throw new BrokerError("overloaded");
    this.#ports.link.admit();
    const call = this.#createCall(names, draft);
    this.#bytes += call.bytes;
    const queue = this.#queueOf(names);
    queue.waiting.push(call);
    this.#wake(queue);
    return call.outcome;
  }

  #createCall(names: ChannelNames, draft: MessageDraft): AppendCall {
    try {
      const { link, clock } = this.#ports;
      return new AppendCall(names, draft, { keys: link.keys, atMs: clock() });
    } catch (error) {
      this.#ports.link.release();
      throw error;
    }
  }

  #queueOf({ bucket }: ChannelNames): Queue {
    const name = this.#ports.link.isCluster ? bucket : 0;
    let queue = this.#queues.get(name);
    if (queue === undefined) {
      queue = { waiting: [], inFlight: new Set() };
      this.#queues.set(name, queue);
    }
    return queue;
  }

  #wake(queue: Queue): void {
    this.#ready.add(queue);
    this.#turn ??= setImmediate(this.#flush);
  }

  readonly #flush = (): void => {
    this.#turn = undefined;
    const queues = [...this.#ready];
    this.#ready.clear();
    for (const queue of queues) {
      this.#rejectLate(queue);
      while (queue.inFlight.size < MAX_BATCHES_IN_FLIGHT) {
        const batch = takeBatch(queue);
        if (batch === undefined) break;
        queue.inFlight.add(batch);
        void this.#send(queue, batch);
      }
    }
  };

  /** Rejects messages that have waited for half of the timeout. The server has the other half. */
  #rejectLate(queue: Queue): void {
    const lastMs = performance.now() - this.#ports.link.settings.timeoutMs / 2;
    const isLate = ({ sinceMs }: AppendCall) => sinceMs < lastMs;
    const [first] = queue.waiting;
    if (first === undefined || !isLate(first)) return; // the queue is sorted by time
    const lateCalls = queue.waiting.filter(isLate);
    queue.waiting = queue.waiting.slice(lateCalls.length);
    const error = new BrokerError("unavailable");
    this.#fail(lateCalls, error);
    const orders = new Set(lateCalls.flatMap(({ order }) => order ?? []));
    this.#fail(takeFollowers(queue, orders), error);
  }

  /** Sends a batch. If this fails, also rejects queued calls that must not overtake those sent. */
  async #send(queue: Queue, batch: Batch): Promise<void> {
    const { calls } = batch;
    try {
      const channels = byChannel(calls);
      const reply = await this.#run(channels, calls.length);
      queue.inFlight.delete(batch);
      this.#settle(channels.flat(), reply);
    } catch (error) {
      queue.inFlight.delete(batch);
      this.#fail(calls, error);
      this.#fail(takeFollowers(queue, batch.orders), error);
    }
    if (queue.waiting.length > 0) this.#wake(queue);
  }

  async #run(channels: readonly (readonly AppendCall[])[], messages: number): Promise<AppendReply> {
    const { link, clock, limits } = this.#ports;
    // All calls use the same counter of message ids: they are in one bucket or on one server.
    const ids = channels[0]?.[0]?.names.ids;
    const bytes: number[] = [link.isCluster ? 1 : 0];
    const args: Arg[] = [];
    for (const calls of channels) {
      const { appendArgs = [], users = 0 } = calls[0]?.names ?? {};
      args.push(...appendArgs);
      bytes.push(users, calls.length);
      for (const call of calls) call.putArgs(args, bytes);
    }
    const { dedupeWindowS, retentionS, maxChannelMessages } = limits;
    const numbers = [
      ...[clock(), dedupeWindowS * 1000, retentionS * 1000],
      ...[maxChannelMessages, ids?.bucket ?? 0, messages],
    ];
    const packed = Buffer.allocUnsafe(8 * numbers.length + bytes.length);
    for (const [at, number] of numbers.entries()) packed.writeDoubleBE(number, 8 * at);
    packed.set(bytes, 8 * numbers.length);
    const reply = await link.run(APPEND, [ids?.key ?? ""], [packed, ...args], {
      isGathered: true,
      timeoutMs: this.#timeLeft(channels[0] ?? []),
    });
    return readReply(reply, messages, (text) => link.errorOf(APPEND, text));
  }

  #timeLeft([oldest]: readonly AppendCall[]): number {
    const { timeoutMs } = this.#ports.link.settings;
    if (oldest === undefined) return timeoutMs;
    return oldest.sinceMs + timeoutMs - performance.now();
  }

  #settle(calls: readonly AppendCall[], reply: AppendReply): void {
    const { results, errors } = reply;
    const [first] = calls;
    const durable =
      first !== undefined && isAnyStored(results)
        ? this.#ports.waitForReplicas(first.names.head)
        : undefined;
    durable?.catch(ignore); // each caller gets the rejection
    let errorIndex = 0;
    for (const [at, call] of calls.entries()) {
      this.#release(call);
      if (call.settle(reply, at, durable)) continue;
      call.fail(errors[errorIndex] ?? new BrokerError("internal"));
      errorIndex += 1;
    }
  }

  #release({ bytes }: AppendCall): void {
    this.#bytes -= bytes;
    this.#ports.link.release();
  }

  #fail(calls: readonly AppendCall[], error: unknown): void {
    for (const call of calls) {
      this.#release(call);
      call.fail(error);
    }
  }
}

/** Groups calls by channel. Key names are compared: a channel may have several `ChannelNames`. */
function byChannel(calls: readonly AppendCall[]): readonly (readonly AppendCall[])[] {
  const channels = new Map<string, AppendCall[]>();
  for (const call of calls) {
    const { head } = call.names;
    const channelCalls = channels.get(head);
    if (channelCalls === undefined) channels.set(head, [call]);
    else channelCalls.push(call);
  }
  return [...channels.values()];
}

/**
 * Takes the next batch. While another batch is in flight, only a full batch is taken, because
 * running the script costs more than the messages in it.
 */
function takeBatch(queue: Queue): Batch | undefined {
  const { waiting, inFlight } = queue;
  const calls: AppendCall[] = [];
  const blocked: AppendCall[] = [];
  const orders = new Set<string>();
  let bytes = 0;
  let inspected = 0;
  let isFull = false;
  for (const call of waiting) {
    const { order } = call;
    if (order !== undefined && isInFlight(inFlight, order)) blocked.push(call);
    else if (calls.length > 0 && bytes + call.bytes > MAX_BYTES) {
      isFull = true;
      break;
    } else {
      if (order !== undefined) orders.add(order);
      calls.push(call);
      bytes += call.bytes;
    }
    inspected += 1;
    isFull = calls.length === MAX_MESSAGES || bytes >= MAX_BYTES;
    if (isFull) break;
  }
  if (calls.length === 0 || (inFlight.size > 0 && !isFull)) return undefined;
  queue.waiting = [...blocked, ...waiting.slice(inspected)];
  return { calls, orders };
}

function isInFlight(batches: ReadonlySet<Batch>, order: string): boolean {
  for (const { orders } of batches) if (orders.has(order)) return true;
  return false;
}

/** Takes the calls with these orders, which must not overtake the failed call. */
function takeFollowers(queue: Queue, orders: ReadonlySet<string>): AppendCall[] {
  if (orders.size === 0) return [];
  const follows = ({ order }: AppendCall) => order !== undefined && orders.has(order);
  const followers = queue.waiting.filter(follows);
  if (followers.length > 0) queue.waiting = queue.waiting.filter((call) => !follows(call));
  return followers;
}

function ignore(): void {}
