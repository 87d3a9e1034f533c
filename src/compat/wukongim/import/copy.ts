// One pass of an import: reads a WuKongIM server and stores its data in a node whose import is
// open. No progress is stored. Each pass replaces tokens, flags, members, lists and positions, and
// adds the messages after the newest stored message of each channel. A pass may therefore stop at
// any line and be repeated. Keeps the uids of all users, the groups, the flags and the deletions in
// memory.

import { createHash } from "node:crypto";
import { withStreamText } from "../../../api/imports.ts";
import { addToChecksum } from "../../../broker/imports.ts";
import { GROUP_CHANNEL, isId, PERSON_CHANNEL, SYSTEM_UID } from "../../../broker/model.ts";
import { usersOf } from "../stored-id.ts";
import { SETTINGS } from "../wkproto/packets.ts";
import * as listings from "./listings.ts";
import { inParallel, Source, SourceError, type SourceOptions } from "./source.ts";
import { Target, type TargetChannel, type TargetOptions } from "./target.ts";

const PAGE_SIZE = 1000;
/** Maximum size of a body: half the default of `api.maxBodyBytes`. */
const MAX_BODY_BYTES = 512 * 1024;
const MAX_LINES = 5000;
const MAX_UIDS = 2000;
/**
 * Number of messages after which the server and the node are compared. A range exceeds this number
 * by less than a page, so it stays below the 10,000 messages that a node compares in one call.
 */
const MAX_COMPARED = 9000;
/** Remaining lifetime in seconds below which a message may be removed while it is compared. */
const EXPIRING_S = 300;
/**
 * Error code of a line that conflicts with the data of the node, for example of a message whose seq
 * belongs to another message.
 */
const CONFLICT = "import_conflict";
const EXAMPLES = 5;
const PROGRESS_MS = 5000;

interface CopyOptions {
  readonly source: SourceOptions;
  readonly target: TargetOptions;
  /** True if the pass also compares unread counts and may then close the import. */
  readonly isLast: boolean;
  /** True if the whole history is compared, and not only the messages that this pass stores. */
  readonly comparesAll: boolean;
  /** True if the import is closed even if the server and the node differ. */
  readonly acceptsDifferences: boolean;
  /**
   * Additional lines for `/admin/import` about users. They are stored after the lines from the
   * server.
   */
  readonly userLines: readonly string[];
  /** Additional lines about channels, their members and their lists. */
  readonly channelLines: readonly string[];
  /** Reports progress to the user of the command. */
  note(line: string): void;
}

interface CopyReport {
  readonly stored: number;
  readonly unchanged: number;
  /** Number of lines that the node refused, by code, with a few examples. */
  readonly refused: Readonly<
    Record<string, { readonly count: number; readonly examples: string[] }>
  >;
  readonly messages: number;
  /** Number of messages that were compared with the server's messages. */
  readonly compared: number;
  /**
   * Descriptions of data that the pass could not copy or compare. A warning does not keep the
   * import open.
   */
  readonly warnings: readonly string[];
  /** Descriptions of the data that differs between the old server and the node. */
  readonly differences: readonly string[];
  readonly isClosed: boolean;
}

interface Group {
  readonly isCreated: boolean;
  readonly ban: boolean;
  readonly disband: boolean;
}

interface Flags {
  readonly large: boolean;
  readonly sendBan: boolean;
  readonly allowStranger: boolean;
}

/** A channel with messages, and its names on the server and on the node. */
interface CopiedChannel extends listings.LoggedChannel {
  readonly read: listings.ReadChannel;
  readonly name: TargetChannel;
  /** Both users of a personal channel. For a group, the array contains its id twice. */
  readonly users: readonly [string, string];
}

/**
 * Messages of a channel that are copied together: all messages, or the messages after the newest
 * one that the node has.
 */
interface Stretch {
  readonly channel: CopiedChannel;
  /** Seq before which the stretch ends. The default is `Infinity`. */
  readonly endSeq?: number;
  /** True if this run has copied and compared the messages that the node already has. */
  readonly isContinued?: boolean;
  /** True if streams that have not ended are also copied. */
  readonly isLast?: boolean;
}

/** Runs a pass. Throws a SourceError if a call to the server or to the node fails. */
export async function copySource(options: CopyOptions): Promise<CopyReport> {
  return new Copy(options).run();
}

class Copy {
  readonly #options: CopyOptions;
  readonly #source: Source;
  readonly #target: Target;
  readonly #lines: Lines;
  readonly #users = new Set<string>();
  readonly #groups = new Map<string, Group>();
  /** Users who have a channel record, by uid. The value is true if the user is banned. */
  readonly #accounts = new Map<string, boolean>();
  readonly #flags = new Map<string, Flags>();
  readonly #deletions = new Map<string, number>();
  /**
   * Channels of which only the messages before an open stream were stored. The text of the stream
   * cannot be replaced later, so the other messages are stored in the run that closes the import,
   * after everything else was compared.
   */
  readonly #held = new Set<CopiedChannel>();
  /**
   * Conversations in which a user has deleted messages. Their unread counts are not compared,
   * because WuKongIM still counts the deleted messages as unread.
   */
  readonly #deleted = new Set<string>();
  readonly #differences: string[] = [];
  readonly #warnings: string[] = [];
  #differenceCount = 0;
  #hasLimits = false;
  #messages = 0;
  #compared = 0;

  constructor(options: CopyOptions) {
    this.#options = options;
    this.#source = new Source(options.source);
    this.#target = new Target(options.target);
    // If the server and --channels disagree about whether a channel is disbanded, only one of the
    // two lines about the channel disbands it. The refusal of the other line is not a difference.
    const disbanded = new Set(
      options.channelLines
        .map((text) => JSON.parse(text))
        .filter(({ disband }) => disband === 1)
        .map(({ channel_id: id, channel_type: type }) => `${type}:${id}`),
    );
    this.#lines = new Lines(this.#target, (text) => {
      const { channel_id: id, channel_type: type } = JSON.parse(text);
      if (this.#groups.get(id)?.disband || disbanded.has(`${type}:${id}`)) return;
      this.#differ(
        `${id}: the channel was disbanded when an earlier run copied it, which cannot be undone. Begin the import again with an empty store`,
      );
    });
  }

  async run(): Promise<CopyReport> {
    const { note, isLast, userLines, channelLines, acceptsDifferences } = this.#options;
    const nodes = await listings.nodeIds(this.#source);
    const { hasLimits } = await this.#target.open();
    this.#hasLimits = hasLimits;
    note("The import is open. Reading users …");
    await this.#copyUsers();
    await this.#lines.addAll(userLines);
    note(`Read the tokens of ${this.#users.size} users. Reading channels …`);
    const logged = await this.#readChannels(nodes);
    await this.#readLogs(nodes[0]);
    await this.#copyChannels();
    await this.#lines.addAll(channelLines);
    await this.#lines.flush();
    note(`Read ${this.#groups.size} groups. Reading messages of ${logged.length} channels …`);
    await this.#copyMessages(logged);
    note(`Sent ${this.#messages} messages. Copying read positions …`);
    await this.#copyPositions();
    if (isLast) await this.#compareUnread();
    const mayClose = () => isLast && (this.#differenceCount === 0 || acceptsDifferences);
    if (mayClose() && this.#held.size > 0) {
      const stretches = logged
        .filter((channel) => this.#held.has(channel))
        .map((channel) => ({ channel, isContinued: true, isLast: true }));
      await this.#copyStretches(stretches);
      await this.#copyPositions();
    }
    const isClosed = mayClose();
    if (isClosed) await this.#target.close();
    const unnamed = this.#differenceCount - this.#differences.length;
    return {
      ...this.#lines.counts(),
      messages: this.#messages,
      compared: this.#compared,
      warnings: this.#warnings,
      differences: unnamed > 0 ? [...this.#differences, `and ${unnamed} more`] : this.#differences,
      isClosed,
    };
  }

  async #copyUsers(): Promise<void> {
    for (const uid of await listings.systemUids(this.#source))
      if (uid !== SYSTEM_UID) await this.#lines.add({ kind: "system_uid", uid });
    for await (const { uid, flag, level, token } of listings.devices(this.#source)) {
      this.#users.add(uid);
      if (flag > listings.MAX_DEVICE_FLAG) continue;
      await this.#lines.add({
        ...{ kind: "token", uid, device_flag: flag },
        ...{ device_level: level, token },
      });
    }
    for await (const uid of listings.users(this.#source)) this.#users.add(uid);
  }

  async #readChannels(nodes: readonly string[]): Promise<readonly CopiedChannel[]> {
    for await (const { id, type, ban, disband } of listings.createdChannels(this.#source)) {
      if (type === GROUP_CHANNEL) this.#groups.set(id, { isCreated: true, ban, disband });
      if (type === PERSON_CHANNEL) this.#accounts.set(id, ban);
    }
    const logged: CopiedChannel[] = [];
    for (const node of nodes)
      for await (const channel of listings.loggedChannels(this.#source, node)) {
        const copied = channel.id.endsWith(listings.COMMAND_SUFFIX)
          ? undefined
          : this.#toCopied(channel);
        if (copied !== undefined && channel.lastSeq > 0) logged.push(copied);
      }
    return this.#byNewestTime(logged);
  }

  #toCopied(channel: listings.LoggedChannel): CopiedChannel | undefined {
    const { id, type } = channel;
    if (type === GROUP_CHANNEL) {
      if (!this.#groups.has(id))
        this.#groups.set(id, { isCreated: false, ban: false, disband: false });
      const read = { channelId: id, channelType: type, loginUid: SYSTEM_UID };
      return { ...channel, read, name: { id, type, uid: "" }, users: [id, id] };
    }
    const pair = type === PERSON_CHANNEL ? usersOf(id) : undefined;
    if (pair === undefined) return undefined;
    const { uid, peer } = pair;
    for (const user of [uid, peer]) if (user !== SYSTEM_UID) this.#users.add(user);
    const read = { channelId: peer, channelType: type, loginUid: uid };
    return { ...channel, read, name: { id: peer, type, uid }, users: [uid, peer] };
  }

  /**
   * Sorts channels by the time of their newest message, because conversations are listed in the
   * order in which the newest messages were stored.
   */
  async #byNewestTime(channels: readonly CopiedChannel[]): Promise<readonly CopiedChannel[]> {
    const times = new Map<CopiedChannel, number>();
    await inParallel(channels, async (channel) => {
      const [newest] = await listings.messagesOf(this.#source, channel.read, 0, 1);
      times.set(channel, newest?.timestamp ?? 0);
    });
    return channels.toSorted((a, b) => (times.get(a) ?? 0) - (times.get(b) ?? 0));
  }

  /** Reads flags and deletions. Only the slot logs contain them. */
  async #readLogs(node: string | undefined): Promise<void> {
    try {
      if (node !== undefined) await this.#readEntries(node);
    } catch (error) {
      if (!(error instanceof SourceError)) throw error;
      this.#flags.clear();
      this.#deletions.clear();
      this.#warnings.push(
        `The server's slot logs cannot be read, so the flags large, send_ban and allow_stranger are unknown and count as 0. Set them with --channels. (${error.message})`,
      );
      await this.#inferDeletions();
    }
  }

  /**
   * Reads the entries of a node's logs. Uses only the newest entry of each channel and
   * conversation, which the server returns before the older entries.
   */
  async #readEntries(node: string): Promise<void> {
    for await (const { command, data } of listings.logEntries(this.#source, node)) {
      if (command === "CMDUpdateChannelInfo" || command === "CMDAddChannelInfo") {
        const name = `${data.channel_type}:${data.channel_id}`;
        if (!this.#flags.has(name))
          this.#flags.set(name, {
            large: data.large === true,
            sendBan: data.send_ban === true,
            allowStranger: data.allow_stranger === true,
          });
      }
      if (command !== "CMDUpdateConversationDeletedAtMsgSeq") continue;
      const name = `${data.uid}\n${data.channelType}:${data.channelId}`;
      if (!this.#deletions.has(name)) this.#deletions.set(name, Number(data.deletedAtMsgSeq ?? 0));
    }
  }

  /**
   * Infers deletions from the replies of `/conversation/sync`. A conversation that is missing from
   * the reply was deleted up to its newest message. Any other conversation was deleted up to the
   * message before its oldest message in the reply. Infers nothing from a missing conversation if
   * the reply was cut off at `MAX_CONVERSATIONS`, nor from messages cut off at `MAX_RECENTS`.
   */
  async #inferDeletions(): Promise<void> {
    const rows = new Map<string, listings.SourceConversation[]>();
    for await (const row of listings.conversations(this.#source)) {
      if (row.isCommand || row.uid === SYSTEM_UID || row.lastSeq === 0) continue;
      const own = rows.get(row.uid);
      if (own === undefined) rows.set(row.uid, [row]);
      else own.push(row);
    }
    let unknown = 0;
    await inParallel([...rows], async ([uid, own]) => {
      const shown = await listings.recentsOf(this.#source, uid);
      const isWhole = shown.size < listings.MAX_CONVERSATIONS;
      for (const { channelId, channelType, lastSeq } of own) {
        const channel = seenBy(uid, channelId, channelType);
        if (channel === undefined || channel.id === SYSTEM_UID) continue;
        const recents = shown.get(`${channelType}:${channel.id}`);
        const name = `${uid}\n${channelType}:${channelId}`;
        if (recents === undefined && isWhole) this.#deletions.set(name, lastSeq);
        if (recents === undefined) continue;
        if (recents.count >= listings.MAX_RECENTS) unknown += 1;
        else if (recents.firstSeq > 1) this.#deletions.set(name, recents.firstSeq - 1);
      }
    });
    if (unknown > 0)
      this.#warnings.push(
        `${unknown} conversations show ${listings.MAX_RECENTS} messages or more, so older deletions in them are unknown. Their users see all messages.`,
      );
  }

  async #copyChannels(): Promise<void> {
    for (const [uid, isBanned] of this.#accounts) {
      this.#users.add(uid);
      await this.#lines.add({ kind: "user", uid, ban: isBanned ? 1 : 0 });
      await this.#lines.add(this.#channelLine(PERSON_CHANNEL, uid, isBanned, false));
    }
    for (const [id, { ban, disband }] of this.#groups)
      await this.#lines.add(this.#channelLine(GROUP_CHANNEL, id, ban, disband));
    await this.#lines.flush();
    const named = [
      ...[...this.#groups].flatMap(([id, { disband }]) =>
        disband ? [] : [{ id, type: GROUP_CHANNEL }],
      ),
      ...[...this.#accounts.keys()].map((id) => ({ id, type: PERSON_CHANNEL })),
    ];
    await inParallel(named, async (channel) => {
      if (!listings.isListed(channel, "subscribers")) return;
      const members = await listings.membersOf(this.#source, channel);
      if (channel.type === GROUP_CHANNEL) for (const uid of members) this.#users.add(uid);
      await this.#addUids({ kind: "members", ...wireOf(channel) }, members);
    });
    const owners = [
      ...named.filter(({ type }) => type === GROUP_CHANNEL),
      ...[...this.#users].map((id) => ({ id, type: PERSON_CHANNEL })),
    ];
    await inParallel(owners, async (channel) => {
      for (const list of ["denylist", "allowlist"] as const) {
        if (!listings.isListed(channel, list)) continue;
        const uids = await listings.membersOf(this.#source, channel, list);
        await this.#addUids({ kind: "list", ...wireOf(channel), list }, uids);
      }
    });
  }

  #channelLine(type: number, id: string, ban: boolean, disband: boolean): object {
    const { large, sendBan, allowStranger } = this.#flags.get(`${type}:${id}`) ?? NO_FLAGS;
    return {
      ...{ kind: "channel", channel_id: id, channel_type: type, ban: Number(ban) },
      ...{ disband: Number(disband), large: Number(large), send_ban: Number(sendBan) },
      allow_stranger: Number(allowStranger),
    };
  }

  /**
   * Adds the uids in lines of at most `MAX_UIDS` uids. The first line replaces the existing uids.
   */
  async #addUids(line: object, uids: readonly string[]): Promise<void> {
    const valid = uids.filter(isId);
    for (let at = 0; at === 0 || at < valid.length; at += MAX_UIDS)
      await this.#lines.add({
        ...line,
        uids: valid.slice(at, at + MAX_UIDS),
        reset: at === 0 ? 1 : 0,
      });
    if (valid.length > MAX_UIDS) await this.#lines.flush();
  }

  /**
   * Copies the messages of channels that are sorted by the time of their newest message. Channels
   * with several pages are copied first, except for their newest message, so that all newest
   * messages are stored in about the order of the channels.
   */
  async #copyMessages(channels: readonly CopiedChannel[]): Promise<void> {
    const long = new Set(channels.filter(({ lastSeq }) => lastSeq > PAGE_SIZE));
    await this.#copyStretches([...long].map((channel) => ({ channel, endSeq: channel.lastSeq })));
    await this.#copyStretches(
      channels.map((channel) => ({ channel, isContinued: long.has(channel) })),
    );
  }

  async #copyStretches(stretches: readonly Stretch[]): Promise<void> {
    const { note } = this.#options;
    const total = stretches.reduce((sum, { channel }) => sum + channel.lastSeq, 0);
    const startMs = performance.now();
    let [done, notedMs] = [0, startMs];
    await inParallel(stretches, async (stretch) => {
      await this.#copyStretch(stretch, (count) => {
        done += count;
        const nowMs = performance.now();
        if (nowMs - notedMs < PROGRESS_MS) return;
        notedMs = nowMs;
        const leftS = Math.ceil((((nowMs - startMs) / done) * Math.max(0, total - done)) / 1000);
        note(`Messages: ${done} of about ${total}, ${leftS} s left.`);
      });
    });
  }

  async #copyStretch(
    { channel, endSeq = Infinity, isContinued = false, isLast = false }: Stretch,
    onDone: (count: number) => void,
  ): Promise<void> {
    const { lastSeq } = channel;
    const comparesAll = this.#options.comparesAll && !isContinued;
    const { headSeq, headTimeS } = await this.#target.range(channel.name, 1, 0);
    if (!comparesAll) onDone(headSeq);
    let next = comparesAll ? 1 : headSeq + 1;
    let range = new Range(next, comparesAll ? 0 : headTimeS);
    while (next <= lastSeq || next === 1) {
      const page = await listings.messagesOf(this.#source, channel.read, next, PAGE_SIZE);
      const openAt = isLast ? -1 : page.findIndex(isOpenStream);
      if (openAt !== -1) this.#held.add(channel);
      const closed = openAt === -1 ? page : page.slice(0, openAt);
      const messages = closed.filter(({ message_seq: seq }) => seq < endSeq);
      const added = messages.filter(({ message_seq: seq }) => seq > headSeq);
      const refusals = await this.#store(channel, added);
      for (const message of messages) if (!refusals.has(message.message_seq)) range.add(message);
      this.#messages += added.length;
      next = (messages.at(-1)?.message_seq ?? next) + 1;
      onDone(messages.length);
      const isEnd = messages.length < PAGE_SIZE;
      if (isEnd || range.count >= MAX_COMPARED) {
        await this.#compareRange(channel, range);
        range = new Range(next, range.lastTimeS);
      }
      if (isEnd) return;
    }
  }

  /** Stores messages. Returns the error codes of the messages that the node refused, by seq. */
  async #store(
    channel: CopiedChannel,
    messages: readonly listings.SourceMessage[],
  ): Promise<ReadonlyMap<number, string>> {
    const refusals = new Map<number, string>();
    for (const batch of inBodies(messages.map((message) => lineOf(channel, message)))) {
      const codes = await this.#lines.send(batch.map(({ text }) => text));
      for (const [line, code] of codes) {
        const seq = batch[line - 1]?.message.message_seq;
        if (seq !== undefined) refusals.set(seq, code);
      }
    }
    return refusals;
  }

  async #compareRange(channel: CopiedChannel, range: Range): Promise<void> {
    this.#compared += range.count;
    if ((await this.#differenceIn(channel, range)) === undefined) return;
    // The node may have refused some of these messages in an earlier run. Such messages are left
    // out of the second comparison.
    const accepted = await this.#acceptedIn(channel, range);
    const difference = await this.#differenceIn(channel, accepted);
    if (difference !== undefined)
      this.#differ(`${channel.id}: messages ${range.fromSeq} to ${range.lastSeq} ${difference}`);
  }

  /**
   * Returns how the server and the node differ in the range, or `undefined` if no difference was
   * found.
   */
  async #differenceIn({ name }: CopiedChannel, range: Range): Promise<string | undefined> {
    if (range.count === 0) return undefined;
    const { count, checksum, headSeq } = await this.#target.range(
      name,
      range.fromSeq,
      range.lastSeq,
    );
    if (headSeq < range.lastSeq) return "differ";
    // The counts may differ, because the node may have removed messages that are expired or old.
    if (this.#hasLimits || range.hasExpired) return undefined;
    if (count > range.count)
      return `differ: the server has deleted ${count - range.count} of them, but the node has not`;
    return checksum === range.checksum() ? undefined : "differ";
  }

  /**
   * Sends the messages of the range again. Returns the range without the messages that the node
   * refuses. Messages that conflict with stored messages remain in the range, so that the
   * comparison fails.
   */
  async #acceptedIn(channel: CopiedChannel, range: Range): Promise<Range> {
    const accepted = new Range(range.fromSeq, range.firstTimeS);
    for (let next = range.fromSeq; next <= range.lastSeq; ) {
      const page = await listings.messagesOf(this.#source, channel.read, next, PAGE_SIZE);
      const messages = page.filter(({ message_seq: seq }) => seq <= range.lastSeq);
      const refusals = await this.#store(channel, messages);
      for (const message of messages) {
        const code = refusals.get(message.message_seq);
        if (code === undefined || code === CONFLICT) accepted.add(message);
      }
      next = (page.at(-1)?.message_seq ?? range.lastSeq) + 1;
    }
    return accepted;
  }

  async #copyPositions(): Promise<void> {
    for await (const row of listings.conversations(this.#source)) {
      const { uid, isCommand, channelId, channelType, readSeq } = row;
      if (isCommand || uid === SYSTEM_UID) continue;
      const channel = seenBy(uid, channelId, channelType);
      if (channel === undefined) continue;
      const deletedSeq = this.#deletions.get(`${uid}\n${channelType}:${channelId}`) ?? 0;
      if (deletedSeq > 0) this.#deleted.add(`${uid}\n${channelType}:${channel.id}`);
      await this.#lines.add({
        ...{ kind: "position", uid, ...wireOf(channel) },
        ...{ read_seq: readSeq, deleted_seq: deletedSeq },
      });
    }
    await this.#lines.flush();
  }

  /**
   * Compares the unread counts of all users who have a conversation. A conversation that exists
   * only on the old server causes a warning: its group was disbanded, or its user is not a member
   * of the group. Channels in `#held` are not compared, which also causes a warning.
   */
  async #compareUnread(): Promise<void> {
    const uids = new Set<string>();
    const held = new Set(
      [...this.#held].flatMap(({ id, type, users: [uid, peer] }) =>
        type === GROUP_CHANNEL
          ? `${type}:${id}`
          : [`${uid}\n${type}:${peer}`, `${peer}\n${type}:${uid}`],
      ),
    );
    const missing: string[] = [];
    let missingCount = 0;
    let heldCount = 0;
    for await (const { uid, isCommand } of listings.conversations(this.#source))
      if (!isCommand && uid !== SYSTEM_UID && isId(uid)) uids.add(uid);
    await inParallel([...uids], async (uid) => {
      const [there, here] = await Promise.all([
        listings.unreadOf((body) => this.#source.post("/conversation/sync", body), uid, 1),
        listings.unreadOf((body) => this.#target.post("/conversation/sync", body), uid, 0),
      ]);
      this.#source.count(2 * there.size); // each conversation and its newest message
      for (const [channel, unread] of there) {
        if (held.has(channel) || held.has(`${uid}\n${channel}`)) {
          heldCount += 1;
          continue;
        }
        const count = here.get(channel);
        if (count === undefined && isCopied(channel)) {
          missingCount += 1;
          if (missing.length < EXAMPLES) missing.push(`${uid} in ${channel}`);
        }
        if (this.#deleted.has(`${uid}\n${channel}`) || this.#flags.get(channel)?.large) continue;
        if (count !== undefined && count !== unread)
          this.#differ(
            `${uid} in ${channel}: ${count} unread messages on the node, but ${unread} on the server`,
          );
      }
    });
    if (missingCount > 0)
      this.#warnings.push(
        `${missingCount} conversations on the server are missing from the node, because the group was disbanded or the user is not a member of it: ${missing.join(", ")}${missingCount > missing.length ? ", …" : ""}`,
      );
    if (heldCount > 0)
      this.#warnings.push(
        `The unread counts of ${heldCount} conversations were not compared, because each of these conversations has a stream that has not ended.`,
      );
  }

  #differ(difference: string): void {
    this.#differenceCount += 1;
    if (this.#differences.length < EXAMPLES) this.#differences.push(difference);
  }
}

const NO_FLAGS: Flags = { large: false, sendBan: false, allowStranger: false };

/** Stored messages of a channel that have not been compared yet. */
class Range {
  readonly fromSeq: number;
  /** Time of the message before the range, in Unix seconds. */
  readonly firstTimeS: number;
  readonly #hash = createHash("sha256");
  count = 0;
  lastSeq = 0;
  lastTimeS: number;
  hasExpired = false;

  constructor(fromSeq: number, firstTimeS: number) {
    this.fromSeq = fromSeq;
    this.firstTimeS = firstTimeS;
    this.lastTimeS = firstTimeS;
  }

  add(message: listings.SourceMessage): void {
    this.count += 1;
    this.lastSeq = message.message_seq;
    this.lastTimeS = Math.max(this.lastTimeS, message.timestamp);
    if (message.expire > 0 && this.lastTimeS + message.expire <= Date.now() / 1000 + EXPIRING_S)
      this.hasExpired = true;
    addToChecksum(this.#hash, {
      messageSeq: message.message_seq,
      timestampMs: this.lastTimeS * 1000,
      fromUid: message.from_uid || SYSTEM_UID,
      clientMsgNo: message.client_msg_no,
      payload: payloadOf(message),
    });
  }

  checksum(): string {
    return this.#hash.copy().digest("hex");
  }
}

function payloadOf({ payload, stream_data: text }: listings.SourceMessage): Uint8Array {
  const bytes = Buffer.from(payload, "base64");
  return text === undefined ? bytes : withStreamText(bytes, Buffer.from(text, "base64"));
}

/** Returns true if the text of the message's stream may still grow. */
function isOpenStream({ setting, end }: listings.SourceMessage): boolean {
  return (setting & SETTINGS.stream) !== 0 && end !== 1;
}

interface MessageLine {
  readonly message: listings.SourceMessage;
  readonly text: string;
}

function lineOf({ users, type }: CopiedChannel, message: listings.SourceMessage): MessageLine {
  const { message_idstr, from_uid, setting: _setting, end: _end, ...fields } = message;
  const fromUid = from_uid || SYSTEM_UID;
  const [first, second] = users;
  const text = JSON.stringify({
    ...{ kind: "message", channel_id: fromUid === second ? first : second, channel_type: type },
    ...{ from_uid: fromUid, message_id: message_idstr, setting: keptSetting(message) },
    ...fields,
  });
  return { message, text };
}

/**
 * Returns the setting without the topic bit, and without the stream bit if the server has lost the
 * text of the stream.
 */
function keptSetting({ setting, stream_data: text }: listings.SourceMessage): number {
  return setting & ~SETTINGS.topic & ~(text === undefined ? SETTINGS.stream : 0);
}

function* inBodies(lines: readonly MessageLine[]): Generator<readonly MessageLine[]> {
  let batch: MessageLine[] = [];
  let bytes = 0;
  for (const line of lines) {
    const size = Buffer.byteLength(line.text);
    if (batch.length > 0 && bytes + size > MAX_BODY_BYTES) {
      yield batch;
      batch = [];
      bytes = 0;
    }
    batch.push(line);
    bytes += size;
  }
  if (batch.length > 0) yield batch;
}

/**
 * Returns the channel from the user's point of view, or `undefined` if Jindou does not support the
 * channel.
 */
function seenBy(uid: string, storedId: string, type: number) {
  if (type === GROUP_CHANNEL) return { id: storedId, type };
  const pair = type === PERSON_CHANNEL ? usersOf(storedId) : undefined;
  return pair && { id: pair.uid === uid ? pair.peer : pair.uid, type };
}

/**
 * Returns true if the channel has a type that Jindou supports. `channel` has the form
 * `<type>:<id>`.
 */
function isCopied(channel: string): boolean {
  return [PERSON_CHANNEL, GROUP_CHANNEL].some((type) => channel.startsWith(`${type}:`));
}

function wireOf({ id, type }: { readonly id: string; readonly type: number }) {
  return { channel_id: id, channel_type: type };
}

/** Lines that are waiting to be sent to the node, and the results of all lines so far. */
class Lines {
  readonly #target: Target;
  readonly #onConflict: (text: string) => void;
  readonly #refused: Record<string, { count: number; examples: string[] }> = {};
  #texts: string[] = [];
  #bytes = 0;
  #stored = 0;
  #unchanged = 0;
  /**
   * Resolves when the last body has been sent. Bodies are sent one at a time, because a line may
   * depend on an earlier line.
   */
  #sending: Promise<unknown> = Promise.resolve();

  /**
   * Calls `onConflict` for each added line that the node refuses because the channel is disbanded
   * on the node but not in the line. Messages are not added but sent with `send`, whose caller
   * compares the server and the node if messages conflict.
   */
  constructor(target: Target, onConflict: (text: string) => void) {
    this.#target = target;
    this.#onConflict = onConflict;
  }

  async addAll(texts: readonly string[]): Promise<void> {
    for (const text of texts) await this.addText(text);
  }

  async add(line: object): Promise<void> {
    await this.addText(JSON.stringify(line));
  }

  async addText(text: string): Promise<void> {
    const size = Buffer.byteLength(text);
    if (this.#texts.length === MAX_LINES || this.#bytes + size > MAX_BODY_BYTES) await this.flush();
    this.#texts.push(text);
    this.#bytes += size;
  }

  async flush(): Promise<void> {
    const texts = this.#texts;
    this.#texts = [];
    this.#bytes = 0;
    this.#sending = this.#sending.then(async () => {
      if (texts.length === 0) return;
      for (const [line, code] of await this.send(texts))
        if (code === CONFLICT) this.#onConflict(texts[line - 1] ?? "");
    });
    await this.#sending;
  }

  /** Sends one body. Returns the error codes of the refused lines, by line number. */
  async send(texts: readonly string[]): Promise<ReadonlyMap<number, string>> {
    const { stored, unchanged, refused } = await this.#target.store(texts);
    this.#stored += stored;
    this.#unchanged += unchanged;
    for (const { line, code, message } of refused) {
      const entry = this.#refused[code] ?? { count: 0, examples: [] };
      this.#refused[code] = entry;
      entry.count += 1;
      const example = `${(texts[line - 1] ?? "").slice(0, 120)}: ${message}`;
      if (entry.examples.length < EXAMPLES) entry.examples.push(example);
    }
    return new Map(refused.map(({ line, code }) => [line, code]));
  }

  counts(): Pick<CopyReport, "stored" | "unchanged" | "refused"> {
    return { stored: this.#stored, unchanged: this.#unchanged, refused: this.#refused };
  }
}
