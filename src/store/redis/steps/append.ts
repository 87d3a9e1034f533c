// Messages on their way into Redis: what one turn of the event loop appends on one server (of a
// Redis Cluster: in one bucket) is one call of the step, and what comes while it is under way is
// the next, which goes at once when it is full. Owns the queues; every message in them has a place
// among the link's calls in flight. Must never let a message of one origin into one channel
// overtake an earlier one, whatever becomes of a call. Hot: no timer, no await per message.

import { BrokerError } from "../../../broker/errors.ts";
import type { MessageDraft } from "../../../broker/ports.ts";
import { type Arg, loadScript } from "../../../redis/script.ts";
import type { RedisStorePorts } from "../ports.ts";
import { AppendCall, isAnyStored, type Outcome, type Reply, readReply } from "./append-call.ts";
import type { ChannelNames } from "./channel-names.ts";
import { permissionTables } from "./permission-tables.ts";

const lua = (name: string) => new URL(`../lua/${name}.lua`, import.meta.url);
const APPEND = loadScript(
  lua("append"),
  permissionTables(),
  ...["channel_record", "permission", "dedupe", "place"].map(lua),
);

/** Of one call. One message may be larger. */
const MAX_MESSAGES = 32;
const MAX_BYTES = 256 * 1024;
const MAX_UNDER_WAY = 2;
/** Of messages that wait or are under way; then further ones are refused. */
const MAX_BYTES_TAKEN = 64 * 1024 * 1024;

interface Batch {
  readonly calls: readonly AppendCall[];
  /** The orders that its calls keep. */
  readonly orders: ReadonlySet<string>;
}

interface Queue {
  waiting: AppendCall[];
  readonly underWay: Set<Batch>;
}

type AppendsParts = Pick<RedisStorePorts, "link" | "clock" | "limits" | "written">;

export class Appends {
  readonly #parts: AppendsParts;
  /** By bucket; one server has one. */
  readonly #queues = new Map<number, Queue>();
  readonly #ready = new Set<Queue>();
  /** Of messages that are not answered yet. */
  #bytes = 0;
  #turn: NodeJS.Immediate | undefined;

  constructor(parts: AppendsParts) {
    this.#parts = parts;
  }

  /**
   * Throws `bad_request`, `overloaded`, `unavailable`, and `internal` where Redis holds what cannot
   * be read.
   */
  append(names: ChannelNames, draft: MessageDraft): Promise<Outcome> {
    if (this.#bytes >= MAX_BYTES_TAKEN) throw new BrokerError("overloaded");
    this.#parts.link.admit();
    const call = this.#begin(names, draft);
    this.#bytes += call.bytes;
    const queue = this.#queueOf(names);
    queue.waiting.push(call);
    this.#wake(queue);
    return call.outcome;
  }

  #begin(names: ChannelNames, draft: MessageDraft): AppendCall {
    try {
      const { link, clock } = this.#parts;
      return new AppendCall(names, draft, { keys: link.keys, atMs: clock() });
    } catch (error) {
      this.#parts.link.release();
      throw error;
    }
  }

  #queueOf({ bucket }: ChannelNames): Queue {
    const name = this.#parts.link.isCluster ? bucket : 0;
    let queue = this.#queues.get(name);
    if (queue === undefined) {
      queue = { waiting: [], underWay: new Set() };
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
      this.#refuseLate(queue);
      while (queue.underWay.size < MAX_UNDER_WAY) {
        const batch = takeBatch(queue);
        if (batch === undefined) break;
        queue.underWay.add(batch);
        void this.#send(queue, batch);
      }
    }
  };

  /**
   * What waited for half of its time is not sent any more: a slow server is given no more than it
   * can do, and has the other half to answer.
   */
  #refuseLate(queue: Queue): void {
    const lastMs = performance.now() - this.#parts.link.settings.timeoutMs / 2;
    const isLate = ({ sinceMs }: AppendCall) => sinceMs < lastMs;
    const [first] = queue.waiting;
    if (first === undefined || !isLate(first)) return; // in the order of the calls
    const late = queue.waiting.filter(isLate);
    queue.waiting = queue.waiting.slice(late.length);
    const error = new BrokerError("unavailable");
    this.#fail(late, error);
    const orders = new Set(late.flatMap(({ order }) => order ?? []));
    this.#fail(takeFollowers(queue, orders), error);
  }

  async #send(queue: Queue, batch: Batch): Promise<void> {
    const { calls } = batch;
    try {
      const channels = byChannel(calls);
      const reply = await this.#run(channels, calls.length);
      queue.underWay.delete(batch);
      this.#settle(channels.flat(), reply);
    } catch (error) {
      queue.underWay.delete(batch);
      this.#fail(calls, error);
      this.#fail(takeFollowers(queue, batch.orders), error);
    }
    if (queue.waiting.length > 0) this.#wake(queue);
  }

  /** The step's reply has the calls in the order that they are given in. */
  async #run(channels: readonly (readonly AppendCall[])[], messages: number): Promise<Reply> {
    const { link, clock, limits } = this.#parts;
    const ids = channels[0]?.[0]?.names.ids; // of all: they are of one bucket, or on one server
    const bytes: number[] = [link.isCluster ? 1 : 0];
    const args: Arg[] = [];
    for (const calls of channels) {
      const { step = [], users = 0 } = calls[0]?.names ?? {};
      args.push(...step);
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
    return readReply(reply, messages);
  }

  /**
   * The messages of a call wait for `redis.timeoutMs` in all, in the queue and for the answer. Its
   * first channel's first one came first.
   */
  #timeLeft([first]: readonly AppendCall[]): number {
    const { timeoutMs } = this.#parts.link.settings;
    if (first === undefined) return timeoutMs;
    return first.sinceMs + timeoutMs - performance.now();
  }

  #settle(calls: readonly AppendCall[], reply: Reply): void {
    const { answers, errors } = reply;
    const durable = isAnyStored(answers) ? this.#parts.written(calls[0]?.names.head) : undefined;
    durable?.catch(ignore); // each caller hears of it
    let failed = 0;
    for (const [at, call] of calls.entries()) {
      this.#release(call);
      if (call.settle(reply, at, durable)) continue;
      call.fail(errors[failed] ?? new BrokerError("internal"));
      failed += 1;
    }
  }

  #release({ bytes }: AppendCall): void {
    this.#bytes -= bytes;
    this.#parts.link.release();
  }

  #fail(calls: readonly AppendCall[], error: unknown): void {
    for (const call of calls) {
      this.#release(call);
      call.fail(error);
    }
  }
}

/**
 * Calls of a channel together, in their order. By name: of one channel there may be several
 * `ChannelNames`, and the step opens each once.
 */
function byChannel(calls: readonly AppendCall[]): readonly (readonly AppendCall[])[] {
  const channels = new Map<string, AppendCall[]>();
  for (const call of calls) {
    const { head } = call.names;
    const others = channels.get(head);
    if (others === undefined) channels.set(head, [call]);
    else others.push(call);
  }
  return [...channels.values()];
}

/**
 * The next calls, as many as fit; while a batch is under way only as many: each call costs both
 * sides more than the messages in it do. One whose order has an earlier one under way waits, and
 * holds up no other.
 */
function takeBatch(queue: Queue): Batch | undefined {
  const { waiting, underWay } = queue;
  const calls: AppendCall[] = [];
  const held: AppendCall[] = [];
  const orders = new Set<string>();
  let bytes = 0;
  let seen = 0;
  let isFull = false;
  for (const call of waiting) {
    const { order } = call;
    if (order !== undefined && isUnderWay(underWay, order)) held.push(call);
    else if (calls.length > 0 && bytes + call.bytes > MAX_BYTES) {
      isFull = true;
      break;
    } else {
      if (order !== undefined) orders.add(order);
      calls.push(call);
      bytes += call.bytes;
    }
    seen += 1;
    isFull = calls.length === MAX_MESSAGES || bytes >= MAX_BYTES;
    if (isFull) break;
  }
  if (calls.length === 0 || (underWay.size > 0 && !isFull)) return undefined;
  queue.waiting = [...held, ...waiting.slice(seen)];
  return { calls, orders };
}

function isUnderWay(batches: ReadonlySet<Batch>, order: string): boolean {
  for (const { orders } of batches) if (orders.has(order)) return true;
  return false;
}

/**
 * Takes out what waits in these orders, of which a call failed: it must not come in before that one
 * is repeated.
 */
function takeFollowers(queue: Queue, orders: ReadonlySet<string>): AppendCall[] {
  if (orders.size === 0) return [];
  const follows = ({ order }: AppendCall) => order !== undefined && orders.has(order);
  const followers = queue.waiting.filter(follows);
  if (followers.length > 0) queue.waiting = queue.waiting.filter((call) => !follows(call));
  return followers;
}

function ignore(): void {}
