/** The addresses of the pages. The server answers all of them with the same index; `crates/server/src/ui.rs` lists them too. */

export const PAGES = [
  'admin',
  'analytics',
  'e',
  'errors',
  'executions',
  'guards',
  'playground',
  'rules',
  'schedules',
  't',
  'tasks',
  'upcoming',
  'workers',
  'workflows',
  'x',
];

/** The menu: titles, the key after `g`, and icons of 16 by 16. */
export const MENU: { title: string; to: string; key: string; icon: string; phone?: boolean }[] = [
  { title: 'Overview', to: '', key: 'o', icon: 'M2 2h5v7H2zM9 2h5v4H9zM9 8h5v6H9zM2 11h5v3H2z', phone: true },
  { title: 'Tasks', to: 'tasks', key: 't', icon: 'M2 4h1M6 4h8M2 8h1M6 8h8M2 12h1M6 12h8', phone: true },
  {
    title: 'Executions',
    to: 'executions',
    key: 'e',
    icon: 'M2 6h4v4H2zM10 2h4v4h-4zM10 10h4v4h-4zM6 8h2M8 4v8M8 4h2M8 12h2',
  },
  { title: 'Workflows', to: 'workflows', key: 'w', icon: 'M3 2h7l3 3v9H3zM10 2v3h3M6 8h4M6 11h4' },
  { title: 'Errors', to: 'errors', key: 'r', icon: 'M8 2L15 14H1zM8 6v4M8 12v.1', phone: true },
  { title: 'Upcoming', to: 'upcoming', key: 'u', icon: 'M2 8a6 6 0 1 0 12 0a6 6 0 1 0-12 0M8 5v3l2 2', phone: true },
  { title: 'Analytics', to: 'analytics', key: 'a', icon: 'M2 14V9M6 14V5M10 14V8M14 14V2M1 14h14' },
  { title: 'Schedules', to: 'schedules', key: 's', icon: 'M2 4h12v10H2zM2 7h12M5 2v3M11 2v3' },
  { title: 'Guards', to: 'guards', key: 'b', icon: 'M8 2v12M4 14h8M3 4h10M3 4L1 9h4zM13 4l-2 5h4z' },
  { title: 'Workers', to: 'workers', key: 'k', icon: 'M2 3h12v4H2zM2 9h12v4H2zM4 5h1M4 11h1' },
  { title: 'Playground', to: 'playground', key: 'p', icon: 'M2 13C6 13 6 4 9 4s2 5 5 5M2 14h12' },
  { title: 'Admin', to: 'admin', key: 'm', icon: 'M3 2v12M8 2v12M13 2v12M1 6h4M6 10h4M11 5h4' },
];
