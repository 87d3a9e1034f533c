// The calls of managers: logging in and out. State: none. Never logs or echoes a password.

import type { Managers } from "../broker/managers.ts";
import type { HttpRequest } from "../transport/types.ts";
import { bearerToken } from "./guard.ts";
import { jsonReply, okReply } from "./reply.ts";
import type { Outcome } from "./route.ts";
import type { Body } from "./schemas.ts";

export interface ManagerParts {
  readonly managers: Managers;
}

export interface ManagerCalls {
  login(body: Body<"login">, request: HttpRequest): Outcome;
  logout(request: HttpRequest): Outcome;
}

export function createManagerCalls({ managers }: ManagerParts): ManagerCalls {
  return {
    async login({ username, password }, { remoteAddress }) {
      const login = await managers.login(username, password, remoteAddress);
      const { account } = login;
      const body = {
        token: login.token,
        expire: login.expireS,
        user: {
          username: account.username,
          role: account.role,
          permissions: account.permissions,
        },
      };
      return jsonReply(JSON.stringify(body));
    },

    logout(request) {
      // The guard let nothing else in.
      return managers.logout(bearerToken(request) ?? "").then(okReply);
    },
  };
}
