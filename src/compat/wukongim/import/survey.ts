// Counts the data of a WuKongIM server, and finds data that cannot be moved to Jindou. Changes
// nothing on that server. Keeps in memory the uids of all users, the ids of all groups, and a few
// examples of each finding.

import {
  GROUP_CHANNEL,
  isId,
  MAX_TOKEN_LENGTH,
  PERSON_CHANNEL,
  SYSTEM_UID,
} from "../../../broker/model.ts";
import { usersOf } from "../stored-id.ts";
import {
  COMMAND_SUFFIX,
  conversations,
  createdChannels,
  devices,
  loggedChannels,
  MAX_DEVICE_FLAG,
  membersOf,
  nodeIds,
  type SourceChannel,
  systemUids,
  users,
} from "./listings.ts";
import { inParallel, Source, type SourceOptions } from "./source.ts";

const EXAMPLES = 5;

/** Findings in the order of the report. */
const FINDINGS = {
  channel_types: "channels of types other than 1 and 2, with their messages",
  channel_ids: "channels whose id Jindou does not accept",
  unreadable_members: "groups whose members cannot be read, because the id contains /",
  uids: "users whose uid Jindou does not accept",
  device_flags: "devices with a device_flag above 2",
  tokens: "devices with a token of more than 4096 characters",
  unread_commands: "users with unread commands, which their clients must fetch before the switch",
} as const;

type Kind = keyof typeof FINDINGS;

interface Finding {
  count: number;
  readonly examples: string[];
}

/** Counts in the report. The JSON output has the same field names. */
interface Counts {
  nodes: number;
  devices: number;
  devices_with_token: number;
  users: number;
  users_without_token: number;
  groups: number;
  memberships: number;
  personal_channels: number;
  messages: number;
  conversations: number;
  system_accounts: number;
}

export interface Survey {
  readonly lines: readonly string[];
  readonly json: object;
}

interface SurveyOptions extends SourceOptions {
  /** Reports progress to the user of the command. */
  note(line: string): void;
}

/** Surveys the server and returns the report. Throws a SourceError if the server cannot be read. */
export async function surveySource(options: SurveyOptions): Promise<Survey> {
  return new Surveyor(options).run();
}

class Surveyor {
  readonly #source: Source;
  readonly #options: SurveyOptions;
  readonly #findings = new Map<Kind, Finding>();
  /** For each uid, whether the user has a token that Jindou accepts. */
  readonly #hasToken = new Map<string, boolean>();
  readonly #groups = new Set<string>();
  readonly #reported = new Set<string>();
  readonly #counts: Counts = {
    nodes: 0,
    devices: 0,
    devices_with_token: 0,
    users: 0,
    users_without_token: 0,
    groups: 0,
    memberships: 0,
    personal_channels: 0,
    messages: 0,
    conversations: 0,
    system_accounts: 0,
  };

  constructor(options: SurveyOptions) {
    this.#options = options;
    this.#source = new Source(options);
  }

  async run(): Promise<Survey> {
    const { note } = this.#options;
    const nodes = await nodeIds(this.#source);
    this.#counts.nodes = nodes.length;
    const systemAccounts = new Set(await systemUids(this.#source));
    this.#counts.system_accounts = systemAccounts.size;
    note("Reading devices and users …");
    await this.#readUsers();
    note(`Read ${this.#counts.devices} devices. Reading channels …`);
    await this.#readChannels(nodes);
    note(`Read ${this.#groups.size} groups. Reading their members …`);
    await this.#readMembers();
    note(`Read ${this.#counts.memberships} memberships. Reading conversations …`);
    await this.#readConversations();
    return this.#report(systemAccounts);
  }

  async #readUsers(): Promise<void> {
    for await (const { uid, flag, token } of devices(this.#source)) {
      this.#counts.devices += 1;
      const isUsable = token !== "" && flag <= MAX_DEVICE_FLAG && token.length <= MAX_TOKEN_LENGTH;
      if (flag > MAX_DEVICE_FLAG) this.#find("device_flags", `${uid}, flag ${flag}`);
      else if (token.length > MAX_TOKEN_LENGTH) this.#find("tokens", uid);
      if (isUsable) this.#counts.devices_with_token += 1;
      this.#addUser(uid, isUsable);
    }
    for await (const uid of users(this.#source)) this.#addUser(uid);
  }

  #addUser(uid: string, hasToken = false): void {
    if (uid === SYSTEM_UID) return;
    const before = this.#hasToken.get(uid);
    if (before === undefined && !isId(uid)) this.#find("uids", uid);
    if (before !== true) this.#hasToken.set(uid, hasToken);
  }

  async #readChannels(nodes: readonly string[]): Promise<void> {
    for await (const channel of createdChannels(this.#source)) this.#addChannel(channel);
    for (const node of nodes)
      for await (const channel of loggedChannels(this.#source, node)) {
        if (channel.id.endsWith(COMMAND_SUFFIX)) continue;
        if (channel.type === PERSON_CHANNEL) this.#addPersonal(channel);
        else this.#addChannel(channel);
        if (isKnownType(channel)) this.#counts.messages += channel.lastSeq;
      }
  }

  #addChannel(channel: SourceChannel): void {
    const { id, type } = channel;
    if (!isKnownType(channel)) this.#findOnce("channel_types", `${id}, type ${type}`);
    // A personal channel in this listing stands for its owner, whose uid is the channel's id.
    else if (type === PERSON_CHANNEL) this.#addUser(id);
    else if (!this.#groups.has(id)) {
      this.#groups.add(id);
      if (!isId(id)) this.#find("channel_ids", id);
    }
  }

  #addPersonal({ id }: SourceChannel): void {
    const pair = usersOf(id);
    if (pair === undefined) return this.#find("channel_ids", id);
    this.#counts.personal_channels += 1;
    for (const uid of [pair.uid, pair.peer]) this.#addUser(uid);
  }

  async #readMembers(): Promise<void> {
    await inParallel(this.#groups, async (id) => {
      if (id.includes("/")) return this.#find("unreadable_members", id);
      const members = await membersOf(this.#source, { id, type: GROUP_CHANNEL });
      this.#counts.memberships += members.length;
      for (const uid of members) this.#addUser(uid);
    });
  }

  async #readConversations(): Promise<void> {
    const readers = new Set<string>();
    for await (const row of conversations(this.#source)) {
      const { uid, isCommand, lastSeq, readSeq } = row;
      if (uid === SYSTEM_UID) continue;
      this.#addUser(uid);
      if (!isCommand) this.#counts.conversations += 1;
      else if (lastSeq > readSeq && !readers.has(uid)) {
        readers.add(uid);
        this.#find("unread_commands", uid);
      }
    }
  }

  #find(kind: Kind, example: string): void {
    const finding = this.#findings.get(kind) ?? { count: 0, examples: [] };
    finding.count += 1;
    if (finding.examples.length < EXAMPLES) finding.examples.push(example);
    this.#findings.set(kind, finding);
  }

  /**
   * Records a finding, unless its example was recorded before. Two listings may contain the same
   * example.
   */
  #findOnce(kind: Kind, example: string): void {
    if (this.#reported.has(example)) return;
    this.#reported.add(example);
    this.#find(kind, example);
  }

  /**
   * Creates the report. System accounts are not reported as users without a token, because they do
   * not connect.
   */
  #report(systemAccounts: ReadonlySet<string>): Survey {
    const withoutToken = [...this.#hasToken].filter(
      ([uid, hasToken]) => !hasToken && !systemAccounts.has(uid),
    );
    const counts = {
      ...this.#counts,
      users: this.#hasToken.size,
      users_without_token: withoutToken.length,
      groups: this.#groups.size,
    };
    const findings = (Object.keys(FINDINGS) as Kind[]).flatMap((kind) => {
      const finding = this.#findings.get(kind);
      return finding === undefined ? [] : [{ kind, ...finding }];
    });
    const examples = withoutToken.slice(0, EXAMPLES).map(([uid]) => uid);
    return {
      lines: [
        ...countLines(counts),
        ...tokenLines(counts.users_without_token, examples),
        ...findingLines(findings),
        "The survey reads no messages. The number of messages is the sum of the last message_seq of all groups and personal channels.",
      ],
      json: {
        ...counts,
        examples_without_token: examples,
        cannot_be_moved: Object.fromEntries(
          findings.map(({ kind, ...finding }) => [kind, finding]),
        ),
      },
    };
  }
}

function isKnownType({ type }: SourceChannel): boolean {
  return type === PERSON_CHANNEL || type === GROUP_CHANNEL;
}

function countLines(counts: Counts): readonly string[] {
  const rows: readonly (readonly [string, number])[] = [
    ["nodes", counts.nodes],
    ["users", counts.users],
    ["users without a token", counts.users_without_token],
    ["devices", counts.devices],
    ["devices with a token", counts.devices_with_token],
    ["groups", counts.groups],
    ["memberships in groups", counts.memberships],
    ["personal channels with messages", counts.personal_channels],
    ["messages in groups and personal channels", counts.messages],
    ["conversations with a read position", counts.conversations],
    ["system accounts", counts.system_accounts],
  ];
  const width = Math.max(...rows.map(([name]) => name.length));
  return ["The server has", ...rows.map(([name, count]) => `  ${name.padEnd(width)}  ${count}`)];
}

function tokenLines(count: number, examples: readonly string[]): readonly string[] {
  if (count === 0) return ["Every user has a token."];
  return [
    `Users without a token cannot connect to Jindou: ${listed(examples, count)}.`,
    "Register their tokens with POST /user/token, or set auth.clients to jwt, token+jwt or none.",
  ];
}

function findingLines(findings: readonly (Finding & { readonly kind: Kind })[]): readonly string[] {
  if (findings.length === 0) return ["Everything that was read can be moved."];
  return [
    "What cannot be moved",
    ...findings.map(
      ({ kind, count, examples }) => `  ${FINDINGS[kind]}: ${count} (${listed(examples, count)})`,
    ),
  ];
}

function listed(examples: readonly string[], count: number): string {
  const quoted = examples.map((example) => JSON.stringify(example)).join(", ");
  return count > examples.length ? `${quoted}, …` : quoted;
}
