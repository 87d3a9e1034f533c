// Endpoints that read channels: a channel's state, members and lists, a node's busiest channels,
// and a user's groups. Lists of ids are returned in pages, ordered by id.

import { type Static, Type } from "typebox";
import type { ChannelActivity } from "../broker/channel-activity.ts";
import type { Channels, Page, PageBounds } from "../broker/channels.ts";
import { type ChannelKey, GROUP_CHANNEL, PERSON_CHANNEL } from "../broker/model.ts";
import { LISTS } from "./channels.ts";
import { channelId, channelType, id, idCursor } from "./fields.ts";
import { jsonReply } from "./reply.ts";

const PAGE_SIZE = 1000;

const channel = { channel_id: channelId, channel_type: channelType };

export const channelQueries = (maxUids: number) => {
  const page = {
    limit: Type.Optional(
      Type.Integer({
        minimum: 1,
        maximum: maxUids,
        description: `Maximum number of ids to return. Absent means ${Math.min(PAGE_SIZE, maxUids)}`,
      }),
    ),
    cursor: Type.Optional(idCursor),
  };
  return {
    state: Type.Object(channel),
    members: Type.Object({
      ...channel,
      list: Type.Optional(
        Type.Enum(["subscribers", "blacklist", "whitelist"], {
          type: "string",
          description:
            "List whose users are returned. Absent means `subscribers`: the permanent and the temporary subscribers",
        }),
      ),
      ...page,
    }),
    allowed: Type.Object(channel),
    groups: Type.Object({ uid: id("User id"), ...page }),
  };
};

const BUSIEST_PAGE = 20;
const MAX_BUSIEST = 1000;

export const busiestQuery = Type.Object({
  limit: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: MAX_BUSIEST,
      description: `Maximum number of channels to return. Absent means ${BUSIEST_PAGE}`,
    }),
  ),
});

export interface BusiestPorts {
  readonly nodeId: string;
  readonly activity: Pick<ChannelActivity, "busiest" | "windowS">;
}

export function createBusiest({ nodeId, activity }: BusiestPorts) {
  return ({ limit = BUSIEST_PAGE }: Static<typeof busiestQuery>) => {
    const channels = activity
      .busiest(limit)
      .map(({ key, messages, events }) => ({ ...namesOf(key), messages, events }));
    const body = { node_id: nodeId, window_s: activity.windowS, channels };
    return jsonReply(JSON.stringify(body));
  };
}

/**
 * Returns the query parameters that select the channel's history. The key of a personal channel can
 * be split at `@`, because uids do not contain it.
 */
function namesOf(key: ChannelKey) {
  const name = key.slice(2);
  if (key.startsWith(`${GROUP_CHANNEL}:`)) return { channel_id: name, channel_type: GROUP_CHANNEL };
  const [uid = "", channel_id = ""] = name.split("@");
  return { channel_id, channel_type: PERSON_CHANNEL, uid };
}

type Queries = ReturnType<typeof channelQueries>;
type Query<Name extends keyof Queries> = Static<Queries[Name]>;

export function createChannelReads(channels: Channels, maxUids: number) {
  const boundsOf = (query: {
    readonly limit?: number | undefined;
    readonly cursor?: string | undefined;
  }): PageBounds => ({
    after: query.cursor ?? "",
    limit: query.limit ?? Math.min(PAGE_SIZE, maxUids),
  });

  return {
    async state({ channel_id, channel_type }: Query<"state">) {
      const ref = { id: channel_id, type: channel_type };
      const { info, sizes, headSeq } = await channels.state(ref);
      const body = {
        ...{ channel_id, channel_type },
        ban: flagOf(info.ban),
        disband: flagOf(info.disband),
        send_ban: flagOf(info.sendBan),
        allow_stranger: flagOf(info.allowStranger),
        large: flagOf(info.large),
        client_events: flagOf(info.clientEvents),
        subscriber_count: sizes.members,
        blacklist_count: sizes.denylist,
        whitelist_count: sizes.allowlist,
        last_message_seq: headSeq,
      };
      return jsonReply(JSON.stringify(body));
    },

    async members(query: Query<"members">) {
      const { channel_id: id, channel_type: type, list = "subscribers" } = query;
      const listName = list === "subscribers" ? "members" : LISTS[list];
      const page = await channels.uids({ id, type }, listName, boundsOf(query));
      return jsonReply(JSON.stringify({ uids: page.ids, ...cursorOf(page) }));
    },

    /** Returns the first `maxUids` users of the allowlist, in WuKongIM's format. */
    async allowed({ channel_id: id, channel_type: type }: Query<"allowed">) {
      const bounds = { after: "", limit: maxUids };
      const { ids } = await channels.uids({ id, type }, "allowlist", bounds);
      return jsonReply(JSON.stringify(ids.map((uid) => ({ uid }))));
    },

    async groups(query: Query<"groups">) {
      const page = await channels.groupsOf(query.uid, boundsOf(query));
      const groups = page.ids.map((channel_id) => ({
        ...{ channel_id, channel_type: GROUP_CHANNEL },
      }));
      const body = { channels: groups, ...cursorOf(page) };
      return jsonReply(JSON.stringify(body));
    },
  };
}

/** Returns the cursor of the next page, empty on the last page. */
export function cursorOf({ ids, more }: Page): { readonly cursor: string } {
  return { cursor: more ? (ids.at(-1) ?? "") : "" };
}

function flagOf(isSet: boolean): 0 | 1 {
  return isSet ? 1 : 0;
}
