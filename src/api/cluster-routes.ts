// The rows of the route table about the nodes of the cluster. State: none.

import { Type } from "typebox";
import { type ClusterParts, createClusterCalls } from "./cluster.ts";
import { MAX_LOOKUP_UIDS, OPTIONAL_ID_PATTERN, uids } from "./fields.ts";
import { nodesBody, routeBatchBody, routeBody } from "./reply-schemas.ts";
import { type ApiRoute, plainRoute, postRoute, queryRoute } from "./route.ts";

const routeQuery = Type.Object({
  uid: Type.Optional(
    Type.String({
      pattern: OPTIONAL_ID_PATTERN,
      description: "Who wants to connect; a crowd of uids is spread",
    }),
  ),
});

export function createClusterRoutes(parts: ClusterParts): readonly ApiRoute[] {
  const calls = createClusterCalls(parts);
  const common = { access: ["system:read"], tag: "cluster" } as const;
  return [
    plainRoute({
      ...common,
      method: "GET",
      path: "/cluster/nodes",
      summary: "Lists the nodes that live",
      success: { description: "Nodes", body: nodesBody },
      errors: ["unavailable"],
      handle: calls.nodes,
    }),
    queryRoute({
      ...common,
      path: "/route",
      summary: "Tells where a client should connect: the least loaded node",
      query: routeQuery,
      success: { description: "Addresses", body: routeBody },
      errors: ["bad_id", "unavailable"],
      handle: calls.route,
    }),
    postRoute({
      ...common,
      path: "/route/batch",
      summary: "Tells where many clients should connect",
      body: uids("Users who want to connect", MAX_LOOKUP_UIDS, {
        title: "RouteRequest",
        examples: [["alice", "bob"]],
      }),
      success: { description: "Addresses", body: routeBatchBody },
      errors: ["bad_id", "unavailable"],
      handle: calls.routeBatch,
    }),
  ];
}
