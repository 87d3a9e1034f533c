// Moved rows of people and channels as facts about keys in Redis (layout: `parts.ts`). What is past its time comes to no fact. Pure.

import { GROUP_CHANNEL } from "../../../broker/model.ts";
import type { Moved } from "../../moved.ts";
import { encodeInfo, ownField, recordKey } from "../steps/channel-record.ts";
import type { Fact, ImportContext } from "./facts.ts";
import { copyFacts, firstFacts, headFacts, messageFacts } from "./messages.ts";
import { deviceFact, passwordFact, tokenFacts } from "./people.ts";
import { streamFacts } from "./streams.ts";

/** In the index of a user's groups: long ago. */
const ENTERED = "0";

/** What a row comes to. */
export function factsOf(context: ImportContext, moved: Moved): readonly Fact[] {
  const { keys } = context;
  switch (moved.kind) {
    case "device":
      return [deviceFact(context, moved)];
    case "password":
      return [passwordFact(context, moved)];
    case "token":
      return tokenFacts(context, moved);
    case "channel": {
      const { info } = moved;
      const key = keys.channel("head", recordKey(info));
      return [hash(key, "info", encodeInfo(info))];
    }
    case "member": {
      const name = recordKey(moved.channel);
      const kinds = [
        ...(moved.permanent ? ["perm"] : []),
        ...(moved.temporary ? ["temp"] : []),
      ];
      return kinds.map((part) => set(keys.channel(part, name), moved.uid));
    }
    case "group":
      return groupFacts(context, moved);
    case "message":
      return messageFacts(context, moved);
    case "stream":
      return streamFacts(context, moved);
    case "own":
      return [
        hash(
          keys.channel("head", moved.key),
          ownField(moved.uid),
          `${moved.seq}`,
        ),
      ];
    case "first":
      return firstFacts(context, moved);
    case "head":
      return headFacts(context, moved);
    case "position": {
      const { readSeq, deletedSeq, headAtChange, changedAtMs } = moved;
      const value = `${readSeq} ${deletedSeq} ${headAtChange} ${changedAtMs}`;
      return [hash(keys.channel("pos", moved.key), moved.uid, value)];
    }
    case "inbox": {
      const key = keys.user("inboxSeq", moved.uid);
      return [{ kind: "value", key, value: `${moved.lastSeq}` }];
    }
    case "copy":
      return copyFacts(context, moved);
  }
}

function hash(
  key: string,
  field: string | number,
  value: string | Buffer,
): Fact {
  return { kind: "hash", key, items: [field, value] };
}

function set(key: string, member: string): Fact {
  return { kind: "set", key, items: [member] };
}

function groupFacts(
  { keys }: ImportContext,
  { uid, channelId, joinSeq }: Extract<Moved, { kind: "group" }>,
): readonly Fact[] {
  const name = recordKey({ type: GROUP_CHANNEL, id: channelId });
  return [
    hash(keys.channel("join", name), uid, `${joinSeq}`),
    hash(keys.user("groups", uid), channelId, ENTERED),
  ];
}
