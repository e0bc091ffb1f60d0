/** Events, newest first. */

import type { Event } from "../api/types";
import { formatTime } from "../lib/format";
import { jobHref } from "../lib/route";
import { clock, jobs } from "../state/server-state";
import { EmptyState } from "./feedback";
import { JobDot } from "./job-cells";

const HIGHLIGHTED_KINDS = new Set(["failed", "alarm", "restarting"]);

interface EventListProps {
  events: readonly Event[];
  limit: number;
  /** Names the job of each event. */
  withJobs?: boolean;
}

export function EventList({ events, limit, withJobs = false }: EventListProps) {
  if (events.length === 0) return <EmptyState title="No events yet" />;
  return (
    <ol class="events" aria-label="events, newest first">
      {events
        .slice(-limit)
        .reverse()
        .map((event) => (
          <li key={event.id} class={HIGHLIGHTED_KINDS.has(event.kind) ? "is-highlighted" : ""}>
            <time dateTime={new Date(event.t * 1000).toISOString()}>{formatTime(event.t, clock.peek())}</time>
            <span class="kind">{event.kind}</span>
            <span class="event-text">
              {withJobs && event.job && (
                <a href={jobHref(event.job)}>
                  <JobDot job={event.job} /> {jobs.get(event.job)?.value.name ?? event.job}
                </a>
              )}{" "}
              {event.text}
            </span>
          </li>
        ))}
    </ol>
  );
}
