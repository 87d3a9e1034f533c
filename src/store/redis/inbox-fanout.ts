// Puts commands into their recipients' inboxes, one step per recipient, or per few where one server holds all. Commands of one channel are issued in
// order, each behind the last, without waiting for its round trips; a large one goes in groups, so that it neither fills the connection nor holds up
// the event loop or other channels. State: the commands being issued, the groups in flight, the count of dropped copies.

import { userTopic } from "../../broker/model.ts";
import { KeyedLock } from "../../lib/keyed-lock.ts";
import { Line } from "../../lib/line.ts";
import { loadScript, type Script } from "../../redis/script.ts";
import { commandFrame } from "../../redis/wire.ts";
import type { Command } from "./inbox-record.ts";
import type { RedisStoreParts } from "./parts.ts";

const lua = (name: string) => new URL(`./lua/${name}.lua`, import.meta.url);
const putScript = loadScript(lua("inbox_put"), lua("inbox_expire"));

/** What the link must know. */
export const fanOutScripts: readonly Script[] = [putScript];

/** Recipients of a group: one stretch of the event loop. */
const GROUP = 128;
/** Recipients of one step where one server holds all: well under a millisecond of Redis. On a Cluster each is in a slot of its own. */
const TOGETHER = 16;
/** Groups in flight at most, and the share of the connection they may take. */
const MAX_GROUPS = 16;
const SHARE = 0.25;

/** What it sends through. */
export type FanOutLink = Pick<RedisStoreParts["link"], "run" | "call">;

export class FanOut {
  readonly #parts: Pick<RedisStoreParts, "link" | "clock" | "limits">;
  readonly #together: number;
  readonly #group: number;
  readonly #lanes = new KeyedLock();
  readonly #line: Line;
  #dropped = 0;

  constructor(parts: Pick<RedisStoreParts, "link" | "clock" | "limits">) {
    this.#parts = parts;
    const { isCluster, settings } = parts.link;
    this.#together = isCluster ? 1 : TOGETHER;
    const steps = Math.max(1, Math.floor(settings.maxInFlight * SHARE));
    this.#group = Math.min(GROUP, steps * this.#together);
    const groups = Math.floor((steps * this.#together) / this.#group);
    this.#line = new Line(Math.max(1, Math.min(MAX_GROUPS, groups)));
  }

  /** Copies that left because their inbox was full, and those that came too late to be put (`lua/inbox_put.lua`). */
  get dropped(): number {
    return this.#dropped;
  }

  /** Resolves when every recipient has its copy and everybody was told. Harmless to repeat. Throws as the link does. */
  async spread(
    command: Command,
    link: FanOutLink = this.#parts.link,
  ): Promise<void> {
    const lane = await this.#lanes.run(command.key, () =>
      this.#issue(command, link),
    );
    await lane.last;
  }

  /** Ends when the last group is issued. */
  async #issue(
    command: Command,
    link: FanOutLink,
  ): Promise<{ last: Promise<void> }> {
    const { recipients } = command;
    let at = 0;
    for (; at + this.#group < recipients.length; at += this.#group)
      await this.#put(command, recipients.slice(at, at + this.#group), link);
    const rest = recipients.slice(at);
    const last = this.#line.run(async () => {
      await allOf([
        this.#steps(command, rest, link),
        this.#tell(command, link),
      ]);
    });
    return { last };
  }

  #put(
    command: Command,
    recipients: readonly string[],
    link: FanOutLink,
  ): Promise<void> {
    return this.#line.run(() => this.#steps(command, recipients, link));
  }

  async #steps(
    command: Command,
    recipients: readonly string[],
    link: FanOutLink,
  ): Promise<void> {
    const steps: Promise<unknown>[] = [];
    for (let at = 0; at < recipients.length; at += this.#together) {
      const some = recipients.slice(at, at + this.#together);
      steps.push(this.#step(command, some, link));
    }
    for (const dropped of await allOf(steps)) this.#dropped += Number(dropped);
  }

  #step(
    command: Command,
    recipients: readonly string[],
    link: FanOutLink,
  ): Promise<unknown> {
    const { clock, limits } = this.#parts;
    const { keys: names } = this.#parts.link;
    const keys: string[] = [];
    const args: (string | number | Buffer)[] = [
      ...[clock(), command.messageId, command.endMs],
      ...[command.endsEarly ? 1 : 0, limits.maxInbox, command.payloadBytes],
      ...[Buffer.from(command.record), command.origin ?? ""],
    ];
    for (const uid of recipients) {
      for (const part of ["inseq", "in", "inx", "inids"])
        keys.push(names.user(part, uid));
      args.push(uid, names.topic(userTopic(uid)));
    }
    return link.run(putScript, keys, args);
  }

  async #tell(command: Command, link: FanOutLink): Promise<void> {
    const { keys } = this.#parts.link;
    const told = command.alsoTell.map((uid) => {
      const frame = commandFrame({ ...command, copy: { uid, inboxSeq: 0 } });
      return link.call("spublish", keys.topic(userTopic(uid)), frame);
    });
    await allOf(told);
  }
}

/** Also where one fails, none is on its way any more when it is told: a place in the line stands for all of them. */
async function allOf<T>(
  calls: readonly Promise<T>[],
): Promise<readonly Awaited<T>[]> {
  try {
    return await Promise.all(calls);
  } catch (error) {
    await Promise.allSettled(calls);
    throw error;
  }
}
