// Appends messages. Messages that were queued in the same turn of the event loop, or while earlier
// calls were in flight, share calls of `append.lua` (see `turn.ts`). Within a channel, a message
// must never overtake an earlier message of the same origin, even if a call fails.

import { BrokerError } from "../../../broker/errors.ts";
import type { MessageDraft } from "../../../broker/ports.ts";
import { type Arg, loadScript } from "../../../redis/script.ts";
import { lua, type RedisStorePorts } from "../ports.ts";
import { TurnQueue } from "../turn.ts";
import {
  AppendCall,
  type AppendReply,
  isAnyStored,
  type Outcome,
  readReply,
} from "./append-call.ts";
import type { ChannelNames } from "./channel-names.ts";
import { permissionTables } from "./permission-tables.ts";

const APPEND = loadScript(
  lua("append"),
  permissionTables(),
  ...["channel_record", "permission", "dedupe", "place"].map(lua),
);

/** Total size of queued and in-flight messages at which further messages are rejected. */
const MAX_PENDING_BYTES = 64 * 1024 * 1024;

type AppendsPorts = Pick<RedisStorePorts, "link" | "clock" | "limits" | "waitForReplicas">;

export class Appends {
  readonly #ports: AppendsPorts;
  readonly #turns: TurnQueue<AppendCall>;

  constructor(ports: AppendsPorts) {
    this.#ports = ports;
    const run = (calls: readonly AppendCall[], timeoutMs: number) => this.#run(calls, timeoutMs);
    this.#turns = new TurnQueue({ link: ports.link, maxPendingBytes: MAX_PENDING_BYTES, run });
  }

  /**
   * Queues a message. May throw `overloaded`, `unavailable`, or `bad_request` if `expire` is
   * invalid.
   */
  append(names: ChannelNames, draft: MessageDraft): Promise<Outcome> {
    this.#turns.assertRoom();
    const { link, clock } = this.#ports;
    const call = new AppendCall(names, draft, { keys: link.keys, atMs: clock() });
    this.#turns.add(names.bucket, call);
    return call.outcome;
  }

  async #run(calls: readonly AppendCall[], timeoutMs: number): Promise<void> {
    const channels = byChannel(calls);
    const reply = await this.#send(channels, calls.length, timeoutMs);
    this.#settle(channels.flat(), reply);
  }

  async #send(
    channels: readonly (readonly AppendCall[])[],
    messages: number,
    timeoutMs: number,
  ): Promise<AppendReply> {
    const { link, clock, limits } = this.#ports;
    // All calls are for one bucket or one server, and therefore share a message id counter.
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
      timeoutMs,
    });
    return readReply(reply, messages, (text) => link.errorOf(APPEND, text));
  }

  #settle(calls: readonly AppendCall[], reply: AppendReply): void {
    const { results, errors } = reply;
    const [first] = calls;
    const durable =
      first !== undefined && isAnyStored(results)
        ? this.#ports.waitForReplicas(first.names.head)
        : undefined;
    durable?.catch(ignore); // each caller receives the rejection
    let errorIndex = 0;
    for (const [at, call] of calls.entries()) {
      if (call.settle(reply, at, durable)) continue;
      call.fail(errors[errorIndex] ?? new BrokerError("internal"));
      errorIndex += 1;
    }
  }
}

/**
 * Groups calls by channel. Compares key names, because a channel may have several `ChannelNames`
 * objects.
 */
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

function ignore(): void {}
